// The frame of all pages: navigation, the state of the connection, the user.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { sessionEnded } from "../api";
import { connection } from "../events";
import { MODIFIER, useActions, useKeys } from "../keys";
import { useRoots } from "../roots";
import { address, go, place } from "../router";
import { isAdmin, logOut, me } from "../session";
import { type Theme, theme } from "../theme";
import { Button } from "./basics";
import { Menu } from "./dialog";
import { Find } from "./find";
import { Help } from "./help";
import { attempt, Toast } from "./toast";

const PAGES: readonly [string, string][] = [
  ["/runs", "Runs"],
  ["/compare", "Compare"],
  ["/sweep", "Sweep"],
  ["/boards", "Boards"],
  ["/jobs", "Jobs"],
  ["/storage", "Storage"],
];
const PEOPLE: readonly [string, string] = ["/people", "People"];
const THEMES: readonly [Theme, string][] = [
  ["system", "System theme"],
  ["light", "Light"],
  ["dark", "Dark"],
];
const LIVE = { connecting: "connecting", live: "live", reconnecting: "reconnecting" };

export function Frame(props: { title: string; children: ComponentChildren }) {
  const finds = useSignal(false);
  const helps = useSignal(false);
  const pages = isAdmin() ? [...PAGES, PEOPLE] : PAGES;
  // Focus a new page, so that its keys work at once and screen readers announce its title.
  const content = useRef<HTMLElement>(null);
  const pagesList = useRef<HTMLElement>(null);
  const { path } = place.value;
  const shown = useRef(path);
  useRoots(path);
  const enter = () => content.current?.focus({ preventScroll: true });
  useLayoutEffect(() => {
    if (shown.current !== path) enter();
    shown.current = path;
    // In a narrow window the navigation scrolls.
    pagesList.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [path]);
  const find = () => {
    finds.value = true;
  };
  const help = () => {
    helps.value = true;
  };
  useKeys("Everywhere", [
    { key: "Mod+k", label: "Find runs, boards, pages and actions", run: find },
    { key: "?", label: "Show all shortcuts", run: help },
  ]);
  useActions("Pages", [
    ...pages.map(([path, name]) => ({ label: name, hint: "page", run: () => go(path) })),
    { label: "Keyboard shortcuts", hint: "?", run: help },
  ]);
  const choices = THEMES.map(([name, label]) => ({
    label,
    isOn: theme.value === name,
    run: () => {
      theme.value = name;
    },
  }));
  return (
    <>
      <a class="skip" href="#content">
        Skip to content
      </a>
      <header>
        <a class="brand" href={address("/")}>
          <span aria-hidden="true">▣</span> aboard
        </a>
        <nav aria-label="Pages" ref={pagesList}>
          {pages.map(([path, name]) => (
            <a
              key={path}
              href={address(path)}
              aria-current={isAt(path) ? "page" : undefined}
              onClick={enter}
            >
              {name}
            </a>
          ))}
        </nav>
        <Button kind="plain" onClick={find} title={`Find anything (${MODIFIER}K)`}>
          <span class="find">
            find… <kbd>{`${MODIFIER}K`}</kbd>
          </span>
        </Button>
        <span class={`live ${connection.value}`} role="status">
          <span aria-hidden="true">●</span> <span class="word">{LIVE[connection.value]}</span>
        </span>
        <Menu
          title="Account"
          label={<span class="user">{me.value?.user ?? "you"}</span>}
          entries={[
            { label: "Your account", run: () => go("/people") },
            ...choices,
            { label: "Log out", run: () => attempt(logOut) },
          ]}
        />
      </header>
      {sessionEnded.value && (
        <div class="note bad" role="alert">
          Your session has ended.{" "}
          <Button onClick={() => window.location.reload()}>Log in again</Button>
        </div>
      )}
      <main id="content" ref={content} tabIndex={-1} aria-label={props.title}>
        {props.children}
      </main>
      <Toast />
      {finds.value && (
        <Find
          onClose={() => {
            finds.value = false;
          }}
        />
      )}
      {helps.value && (
        <Help
          onClose={() => {
            helps.value = false;
          }}
        />
      )}
    </>
  );
}

function isAt(path: string): boolean {
  const at = place.value.path;
  return at === path || at.startsWith(`${path}/`) || (at === "/" && path === "/runs");
}
