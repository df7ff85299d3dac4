// A select box for tool bars.

/** A select box with its label before it. */
export function Choice(props: {
  label: string;
  value: string;
  groups: readonly (readonly [string, readonly (readonly [string, string])[]])[];
  onChange: (value: string) => void;
}) {
  const all = props.groups.flatMap(([, options]) => options.map(([value]) => value));
  return (
    <label class="tool">
      {props.label}{" "}
      <select
        aria-label={props.label}
        value={props.value}
        onChange={(event) => props.onChange(event.currentTarget.value)}
      >
        {!all.includes(props.value) && <option value={props.value}>{props.value}</option>}
        {props.groups.map(([name, options]) =>
          name ? (
            <optgroup key={name} label={name}>
              {options.map(([value, label]) => (
                <option key={value} value={value}>
                  {label}
                </option>
              ))}
            </optgroup>
          ) : (
            options.map(([value, label]) => (
              <option key={value} value={value}>
                {label}
              </option>
            ))
          ),
        )}
      </select>
    </label>
  );
}
