// Who uses the console. Roles decide on the server; the console only hides what would be refused.

import { signal } from "@preact/signals";
import { address } from "./address";
import { ApiError, change, get, type Me } from "./api";

export const me = signal<Me | undefined>(undefined);

const RETRY_MILLISECONDS = 5000;

/** Load who the user is, and try again until the hub has answered. */
export async function loadMe(): Promise<void> {
  try {
    me.value = await get<Me>("/me");
  } catch (error) {
    // The page says what is wrong: its other requests fail too.
    if (!(error instanceof ApiError && error.status === 401))
      setTimeout(loadMe, RETRY_MILLISECONDS);
  }
}

export function isAdmin(): boolean {
  return me.value?.role === "admin";
}

/**
 * Whether the user may start boards and change runs. Most may: until the hub has answered, nothing
 * is hidden, so that keys work at once and buttons do not move the page.
 */
export function isMember(): boolean {
  return me.value?.role !== "viewer";
}

export async function logOut(): Promise<void> {
  await change("POST", "/logout");
  window.location.assign(address("/login"));
}
