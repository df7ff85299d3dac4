// The user of the console. The server checks roles; the console only hides what it would refuse.

import { signal } from "@preact/signals";
import { address } from "./address";
import { ApiError, change, get, type Me } from "./api";

export const me = signal<Me | undefined>(undefined);

const RETRY_MILLISECONDS = 5000;

/** Load the user, and retry until the hub answers. */
export async function loadMe(): Promise<void> {
  try {
    me.value = await get<Me>("/me");
  } catch (error) {
    // The page shows the error, because its other requests fail too.
    if (!(error instanceof ApiError && error.status === 401))
      setTimeout(loadMe, RETRY_MILLISECONDS);
  }
}

export function isAdmin(): boolean {
  return me.value?.role === "admin";
}

/**
 * Whether the user may start boards and change runs. Most users may, so nothing is hidden until the
 * hub answers: keys work at once, and buttons do not move the page.
 */
export function isMember(): boolean {
  return me.value?.role !== "viewer";
}

export async function logOut(): Promise<void> {
  await change("POST", "/logout");
  window.location.assign(address("/login"));
}
