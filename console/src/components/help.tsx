// The overlay of `?`: all shortcuts of the page, by group.

import { MODIFIER, shortcutGroups } from "../keys";
import { Dialog } from "./dialog";

const SIGNS: Record<string, string> = {
  "Mod+": MODIFIER,
  Enter: "↵",
  Escape: "Esc",
  ArrowDown: "↓",
  ArrowUp: "↑",
};

export function Help(props: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={props.onClose} class="help">
      <h2>Keyboard shortcuts</h2>
      {shortcutGroups.value.map((group) => (
        <section key={group.name}>
          <h3>{group.name}</h3>
          <dl>
            {group.entries().map((one) => (
              <div key={one.key}>
                <dt>
                  <kbd>{one.key.replace(/Mod\+|\w{2,}/, (name) => SIGNS[name] ?? name)}</kbd>
                </dt>
                <dd>{one.label}</dd>
              </div>
            ))}
          </dl>
        </section>
      ))}
    </Dialog>
  );
}
