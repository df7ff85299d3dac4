// Who uses the console. Roles decide on the server; the console only hides what would be refused.

import { signal } from "@preact/signals";
import { address } from "./address";
import { change, get, type Me } from "./api";

export const me = signal<Me | undefined>(undefined);

export async function loadMe(): Promise<void> {
  me.value = await get<Me>("/me");
}

export function isAdmin(): boolean {
  return me.value?.role === "admin";
}

/** Whether the user may start boards and change runs. */
export function isMember(): boolean {
  return me.value !== undefined && me.value.role !== "viewer";
}

export async function logOut(): Promise<void> {
  await change("POST", "/logout");
  window.location.assign(address("/login"));
}
