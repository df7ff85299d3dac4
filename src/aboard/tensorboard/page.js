// New data appears by itself, unless the user has turned reloading off. TensorBoard would reload at
// fixed times, which stops a sound that plays and moves every slider back to its last step. So its
// own period is set far away, in the settings that it stores, and reloading waits for a change.
// A source that cannot be read is named in a banner for as long as that lasts.
(() => {
  const key = '_tb_global_settings';
  const period = 5_000;
  const shortest = 30_000; // the shortest period that TensorBoard accepts
  const ours = 86_400_000; // the period that TensorBoard gets, so that it leaves reloading to us
  const status = new URL('data/status', document.currentScript.src);
  const settings = () => JSON.parse(localStorage.getItem(key) ?? '{}');
  try {
    const {autoReload, autoReloadPeriodInMs} = settings();
    if (autoReload === undefined || autoReloadPeriodInMs < shortest) {
      const reloading = {autoReload: autoReload ?? true, autoReloadPeriodInMs: ours};
      localStorage.setItem(key, JSON.stringify({...settings(), ...reloading}));
    }
  } catch (error) {
    console.debug('aboard: the settings of the page cannot be stored', error);
    return;
  }

  const find = (root, wanted) => [...root.querySelectorAll('*')].some(
    (one) => (one.getClientRects().length && wanted(one)) ||
      (one.shadowRoot && find(one.shadowRoot, wanted)));
  const plays = (one) => one instanceof HTMLMediaElement && !one.paused && !one.ended;
  const isBack = (one) => one.matches('paper-slider#steps') && one.immediateValue < one.max;
  const isInUse = () => find(document, (one) => plays(one) || isBack(one));

  const warn = (problems) => {
    let banner = document.getElementById('aboard-problems');
    if (!problems.length) {
      banner?.remove();
      return;
    }
    if (!banner) {
      banner = document.createElement('div');
      banner.id = 'aboard-problems';
      banner.setAttribute('role', 'alert');
      Object.assign(banner.style, {
        position: 'fixed', bottom: '0', left: '0', right: '0', zIndex: '1000', padding: '8px 16px',
        font: '14px Roboto, sans-serif', background: '#b71c1c', color: '#fff', whiteSpace: 'pre-line',
      });
      document.body.append(banner);
    }
    banner.textContent = problems.join('\n');
  };

  let shown; // the version that the page has loaded, or a later one
  const poll = async () => {
    const {autoReload, autoReloadPeriodInMs} = settings();
    if (document.hidden || (shown && !(autoReload && autoReloadPeriodInMs === ours))) return;
    const response = await fetch(status);
    if (!response.ok) return;
    const {version, problems} = await response.json();
    warn(problems);
    shown ??= version;
    const button = document.querySelector('button.reload-button:not(.loading)');
    if (version === shown || !button || isInUse()) return;
    shown = version;
    button.click();
  };
  const tryToPoll = () => poll().catch(
    (error) => console.debug('aboard: the board does not respond', error));
  tryToPoll();
  setInterval(tryToPoll, period);
})();
