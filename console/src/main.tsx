// Starts the console.

import { render } from "preact";
import { App, isPage } from "./app";
import { startEvents } from "./events";
import { startKeys } from "./keys";
import { startRouter } from "./router";
import { loadMe } from "./session";
import "./theme.css";
import "./style.css";

startRouter(isPage);
startKeys();
startEvents();
loadMe();
render(<App />, document.body);
