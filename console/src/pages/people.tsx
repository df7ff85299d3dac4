// The user's password, tokens and sessions; for administrators, those of all users.

import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import {
  type ApiError,
  change,
  get,
  type Limits,
  type Role,
  type Session,
  type Token,
  type User,
} from "../api";
import { Bar, Button, Copy, ErrorNote, Time } from "../components/basics";
import { Confirm } from "../components/confirm";
import { Form, into, SelectField, TextField } from "../components/form";
import { Section } from "../components/panel";
import { say } from "../components/toast";
import * as format from "../format";
import { asError, type Loaded, useLoaded } from "../loading";
import { isAdmin, me } from "../session";
import { Fact } from "./board";

const ROLES: readonly (readonly [Role, string])[] = [
  ["viewer", "viewer: sees"],
  ["member", "member: starts boards"],
  ["admin", "admin: everything"],
];
const LASTING = [
  ["30d", "30 days"],
  ["90d", "90 days"],
  ["365d", "a year"],
  ["", "no end"],
] as const;

export function People() {
  const tokens = useLoaded("tokens", (signal) => get<{ tokens: Token[] }>("/tokens", {}, signal));
  const sessions = useLoaded("sessions", (signal) =>
    get<{ sessions: Session[] }>("/sessions", {}, signal),
  );
  const you = me.value;
  const refresh = () => {
    tokens.refresh();
    sessions.refresh();
  };
  return (
    <div class="page">
      <Bar>
        <h1>{isAdmin() && !you?.personal ? "People" : "Your account"}</h1>
        {you && (
          <span class="soft">
            {you.user}, {you.role}
          </span>
        )}
      </Bar>
      <div class="cards">
        {isAdmin() && !you?.personal && <Users onChange={refresh} />}
        <Tokens tokens={tokens} />
        <Sessions sessions={sessions} />
        {you && !you.personal && <Password user={you.user} />}
        <LimitsOfUsers />
      </div>
    </div>
  );
}

/** Run something, store its error, and load again what it changed. */
function useAttempt(refresh: () => void): {
  error: ApiError | undefined;
  attempt: (work: () => Promise<void>) => Promise<boolean>;
} {
  const error = useSignal<ApiError | undefined>(undefined);
  const attempt = async (work: () => Promise<void>) => {
    error.value = undefined;
    try {
      await work();
      return true;
    } catch (thrown) {
      error.value = asError(thrown);
      return false;
    } finally {
      refresh();
    }
  };
  return { error: error.value, attempt };
}

function Users(props: { onChange: () => void }) {
  const users = useLoaded("users", (signal) => get<{ users: User[] }>("/users", {}, signal));
  const { error, attempt } = useAttempt(() => {
    users.refresh();
    props.onChange();
  });
  const removed = useSignal<User | undefined>(undefined);
  const name = useSignal("");
  const password = useSignal("");
  const role = useSignal<Role>("member");
  const path = (user: User) => `/users/${encodeURIComponent(user.name)}`;
  const add = async () => {
    const body = {
      name: name.value.trim(),
      role: role.value,
      ...(password.value ? { password: password.value } : {}),
    };
    const done = await attempt(async () => {
      await change("POST", "/users", body);
    });
    if (!done) return;
    name.value = "";
    password.value = "";
  };
  return (
    <Section title="Users">
      <ErrorNote error={error ?? users.error} />
      <ul class="lines">
        {users.data?.users.map((user) => (
          <li key={user.name}>
            <span class="grow">{user.name}</span>
            <span class="soft">
              <Time at={user.created} />
            </span>
            <select
              aria-label={`Role of ${user.name}`}
              value={user.role}
              onChange={(event) => {
                const next = event.currentTarget.value;
                attempt(async () => {
                  await change("PATCH", path(user), { role: next });
                });
              }}
            >
              {ROLES.map(([value]) => (
                <option key={value} value={value} selected={value === user.role}>
                  {value}
                </option>
              ))}
            </select>
            <Button
              kind="danger"
              label={`Remove ${user.name}`}
              disabled={user.name === me.value?.user}
              onClick={() => {
                removed.value = user;
              }}
            >
              Remove…
            </Button>
          </li>
        ))}
      </ul>
      <Form
        label="Add a user"
        submit="Add user"
        class="row"
        disabled={!name.value.trim()}
        onSubmit={add}
      >
        <TextField label="name" value={name.value} onChange={into(name)} />
        <TextField
          label="password"
          type="password"
          autocomplete="new-password"
          value={password.value}
          onChange={into(password)}
        />
        <SelectField
          label="role"
          value={role.value}
          onChange={(text) => {
            role.value = text as Role;
          }}
          options={ROLES}
        />
      </Form>
      {removed.value && (
        <Confirm
          title={`Remove ${removed.value.name}?`}
          action="Remove"
          run={async () => {
            if (removed.value) await change("DELETE", path(removed.value));
            users.refresh();
            props.onChange();
          }}
          onClose={() => {
            removed.value = undefined;
          }}
        >
          <p>
            This deletes the password, tokens, sessions and shared links of {removed.value.name}.
            Programs with these tokens will fail. Boards and runs are kept.
          </p>
        </Confirm>
      )}
    </Section>
  );
}

function Tokens(props: { tokens: Loaded<{ tokens: Token[] }> }) {
  const { tokens } = props;
  const { error, attempt } = useAttempt(tokens.refresh);
  const name = useSignal("");
  const lasts = useSignal("90d");
  const made = useSignal("");
  const revoked = useSignal<Token | undefined>(undefined);
  const now = Date.now();
  const good = (tokens.data?.tokens ?? []).filter(
    (token) => !token.revoked && !(token.expires && Date.parse(token.expires) < now),
  );
  const create = () =>
    attempt(async () => {
      const body = { name: name.value.trim(), ...(lasts.value ? { lasts: lasts.value } : {}) };
      made.value = (await change<Token>("POST", "/tokens", body)).token ?? "";
      name.value = "";
    });
  return (
    <Section title="Tokens">
      <ErrorNote error={error ?? tokens.error} />
      {good.length === 0 && <p class="soft">No tokens.</p>}
      <ul class="lines">
        {good.map((token) => (
          <li key={token.id}>
            <span class="grow" title={token.prefix}>
              {token.name || token.prefix} <Whose user={token.user} />
            </span>
            <span class="soft">
              used <Time at={token.last_used} empty="never" />
            </span>
            <span class="soft">
              ends <Time at={token.expires} empty="never" />
            </span>
            <Button
              label={`Revoke ${token.name || token.prefix}`}
              onClick={() => {
                revoked.value = token;
              }}
            >
              Revoke…
            </Button>
          </li>
        ))}
      </ul>
      {made.value && (
        <div class="secret" role="status">
          <p>Programs with this token act for you. Copy it now: it is not shown again.</p>
          <code>{made.value}</code>
          <Copy text={made.value} label="Copy the token" />
        </div>
      )}
      <Form label="New token" submit="Create token" class="row" onSubmit={create}>
        <TextField label="what it is for" value={name.value} onChange={into(name)} />
        <SelectField label="lasts" value={lasts.value} onChange={into(lasts)} options={LASTING} />
      </Form>
      {revoked.value && (
        <Confirm
          title={`Revoke ${revoked.value.name || revoked.value.prefix}?`}
          action="Revoke"
          run={async () => {
            if (revoked.value) await change("DELETE", `/tokens/${revoked.value.id}`);
            made.value = "";
            tokens.refresh();
          }}
          onClose={() => {
            revoked.value = undefined;
          }}
        >
          <p>Programs that use it will fail. This cannot be undone.</p>
        </Confirm>
      )}
    </Section>
  );
}

function Sessions(props: { sessions: Loaded<{ sessions: Session[] }> }) {
  const { sessions } = props;
  const { error, attempt } = useAttempt(sessions.refresh);
  return (
    <Section title="Sessions">
      <ErrorNote error={error ?? sessions.error} />
      <ul class="lines">
        {[...(sessions.data?.sessions ?? [])].reverse().map((session) => (
          <li key={session.id}>
            <span class="grow">
              {session.current ? "this browser" : "a browser"} <Whose user={session.user} />
            </span>
            <span class="soft">
              since <Time at={session.created} />
            </span>
            <span class="soft">
              ends <Time at={session.expires} />
            </span>
            <Button
              label={`End the session of ${session.created}`}
              disabled={session.current}
              title={session.current ? "Log out instead" : "Its browser has to log in again"}
              onClick={() => attempt(() => change("DELETE", `/sessions/${session.id}`))}
            >
              End
            </Button>
          </li>
        ))}
      </ul>
    </Section>
  );
}

/** The name of a user, unless it is the current one. */
function Whose(props: { user: string }) {
  return props.user === me.value?.user ? null : <span class="soft">of {props.user}</span>;
}

function Password(props: { user: string }) {
  const first = useSignal("");
  const again = useSignal("");
  const { error, attempt } = useAttempt(() => undefined);
  const differ = again.value !== "" && first.value !== again.value;
  const set = async () => {
    const path = `/users/${encodeURIComponent(props.user)}/password`;
    const done = await attempt(() => change("PUT", path, { password: first.value }));
    if (!done) return;
    first.value = "";
    again.value = "";
    say("Your password was changed, and all your sessions have ended.");
  };
  return (
    <Section title="Password">
      <ErrorNote error={error} />
      <Form
        label="Password"
        submit="Set password"
        class="row"
        disabled={!first.value || first.value !== again.value}
        onSubmit={set}
      >
        <TextField
          label="new password"
          type="password"
          autocomplete="new-password"
          value={first.value}
          onChange={into(first)}
        />
        <TextField
          label="again"
          type="password"
          autocomplete="new-password"
          value={again.value}
          onChange={into(again)}
          hint={differ ? "The passwords differ." : ""}
        />
      </Form>
      <p class="soft">This ends all your sessions, including this one. Log in again afterwards.</p>
    </Section>
  );
}

function LimitsOfUsers() {
  const limits = useLoaded("limits", (signal) => get<Limits>("/limits", {}, signal));
  const found = limits.data;
  const most = (value: number | null) => (value === null ? "any number" : format.count(value));
  const ceiling = (value: number, shown: (value: number) => string): ComponentChildren =>
    value ? shown(value) : "no limit";
  return (
    <Section title="Limits of each user">
      <ErrorNote error={limits.error} onRetry={limits.refresh} />
      {found && (
        <dl class="facts">
          <Fact name="instant boards">{most(found.instant)}</Fact>
          <Fact name="isolated boards">{most(found.isolated)}</Fact>
          <Fact name="memory per board">{ceiling(found.memory, format.bytes)}</Fact>
          <Fact name="processors per board">{ceiling(found.cpus, String)}</Fact>
          <Fact name="time per board">{ceiling(found.timeout, format.duration)}</Fact>
          <Fact name="idle time per board">{ceiling(found.idle_timeout, format.duration)}</Fact>
        </dl>
      )}
    </Section>
  );
}
