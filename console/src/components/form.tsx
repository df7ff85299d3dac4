// Parts of forms: fields with a label and a hint.

import type { Signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

/** Put the text of a field into a signal. */
export const into = (signal: Signal<string>) => (text: string) => {
  signal.value = text;
};

/** Put the text of an `input` into a signal. */
export const inputInto =
  (signal: Signal<string>) => (event: { currentTarget: { value: string } }) => {
    signal.value = event.currentTarget.value;
  };

interface FieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  hint?: ComponentChildren;
}

export function TextField(
  props: FieldProps & {
    placeholder?: string;
    type?: "text" | "password";
    isCode?: boolean;
    autocomplete?: string;
    required?: boolean;
  },
) {
  const id = useId();
  const { hint } = props;
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      <input
        id={id}
        type={(props.type ?? "text") as "text"} // Preact's types need a literal
        class={props.isCode ? "mono" : ""}
        value={props.value}
        placeholder={props.placeholder}
        required={props.required}
        spellcheck={false}
        autocomplete={props.autocomplete ?? "off"}
        {...(hint ? { "aria-describedby": `${id}-hint` } : {})}
        onInput={(event) => props.onChange(event.currentTarget.value)}
      />
      {hint && (
        <p class="soft" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

export function SelectField(
  props: FieldProps & { options: readonly (readonly [value: string, label: string])[] },
) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      <select
        id={id}
        value={props.value}
        onChange={(event) => props.onChange(event.currentTarget.value)}
        {...(props.hint ? { "aria-describedby": `${id}-hint` } : {})}
      >
        {props.options.map(([value, label]) => (
          <option key={value} value={value} selected={value === props.value}>
            {label}
          </option>
        ))}
      </select>
      {props.hint && (
        <p class="soft" id={`${id}-hint`}>
          {props.hint}
        </p>
      )}
    </div>
  );
}

/** A form that is submitted with its button or with Enter. */
export function Form(props: {
  label: string;
  submit: string;
  isBusy?: boolean;
  disabled?: boolean;
  onSubmit: () => void;
  children: ComponentChildren;
  class?: string;
}) {
  return (
    <form
      class={`form ${props.class ?? ""}`}
      aria-label={props.label}
      onSubmit={(event) => {
        event.preventDefault();
        if (!props.isBusy && !props.disabled) props.onSubmit();
      }}
    >
      {props.children}
      <div class="submit">
        <button
          type="submit"
          class="button primary"
          disabled={props.isBusy || props.disabled}
          aria-busy={props.isBusy}
        >
          {props.submit}
        </button>
      </div>
    </form>
  );
}
