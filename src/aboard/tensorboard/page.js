// New data shows by itself, unless whoever looks has decided otherwise. TensorBoard would reload
// at fixed times, which stops a sound that plays and puts every slider back to its last step. So
// its own time is set far away, in the settings that it keeps, and reloading waits for a change.
(() => {
  const place = '_tb_global_settings';
  const often = 5_000;
  const shortest = 30_000; // the shortest time that TensorBoard accepts
  const ours = 86_400_000; // what TensorBoard is told, so that it leaves reloading to this script
  const version = new URL('data/version', document.currentScript.src);
  const settings = () => JSON.parse(localStorage.getItem(place) ?? '{}');
  try {
    const {autoReload, autoReloadPeriodInMs} = settings();
    if (autoReload === undefined || autoReloadPeriodInMs < shortest) {
      const reloading = {autoReload: autoReload ?? true, autoReloadPeriodInMs: ours};
      localStorage.setItem(place, JSON.stringify({...settings(), ...reloading}));
    }
  } catch (error) {
    console.debug('aboard: the settings of the page cannot be kept', error);
    return;
  }

  const find = (root, wanted) => [...root.querySelectorAll('*')].some(
    (one) => (one.getClientRects().length && wanted(one)) ||
      (one.shadowRoot && find(one.shadowRoot, wanted)));
  const plays = (one) => one instanceof HTMLMediaElement && !one.paused && !one.ended;
  const isBack = (one) => one.matches('paper-slider#steps') && one.immediateValue < one.max;
  const isInUse = () => find(document, (one) => plays(one) || isBack(one));

  let shown; // the version that the page has loaded, or a later one
  const look = async () => {
    const {autoReload, autoReloadPeriodInMs} = settings();
    if (document.hidden || (shown && !(autoReload && autoReloadPeriodInMs === ours))) return;
    const answer = await fetch(version);
    if (!answer.ok) return;
    const current = await answer.text();
    shown ??= current;
    const button = document.querySelector('button.reload-button:not(.loading)');
    if (current === shown || !button || isInUse()) return;
    shown = current;
    button.click();
  };
  const tryToLook = () => look().catch(
    (error) => console.debug('aboard: the board does not answer', error));
  tryToLook();
  setInterval(tryToLook, often);
})();
