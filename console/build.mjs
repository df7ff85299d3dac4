// Builds the console into the Python package: `node build.mjs`, with `--watch` again after each change.
// `node build.mjs --test` runs the unit tests.

import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "src", "aboard", "hub", "console");
const jsx = { jsx: "automatic", jsxImportSource: "preact" };

// The page is written last: where it is, everything that it names is.
const writePage = {
  name: "page",
  setup(build) {
    build.onEnd(({ errors, outputFiles = [] }) => {
      if (errors.length > 0) return;
      rmSync(target, { recursive: true, force: true });
      mkdirSync(target, { recursive: true });
      let page = readFileSync(join(here, "index.html"), "utf8");
      let total = 0;
      for (const file of outputFiles) {
        const name = basename(file.path);
        const kind = name.split(".").pop();
        const size = gzipSync(file.contents, { level: 9 }).length;
        total += size;
        page = page.replace(`console/app.${kind}`, `console/${name}`);
        writeFileSync(join(target, name), file.contents);
        console.log(`${name.padEnd(18)} ${(size / 1000).toFixed(1).padStart(6)} kB gzipped`);
      }
      console.log(`${"in all".padEnd(18)} ${(total / 1000).toFixed(1).padStart(6)} kB gzipped`);
      writeFileSync(join(target, "index.html"), page);
    });
  },
};

const bundle = {
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: target,
  entryNames: "[name]-[hash]",
  bundle: true,
  write: false,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "none",
  logLevel: "warning",
  plugins: [writePage],
  ...jsx,
};

async function runTests() {
  const made = mkdtempSync(join(here, "node_modules", ".tests-"));
  try {
    const names = readdirSync(join(here, "tests")).filter((name) => name.endsWith(".test.ts"));
    await esbuild.build({
      absWorkingDir: here,
      entryPoints: names.map((name) => `tests/${name}`),
      outdir: made,
      outExtension: { ".js": ".mjs" },
      bundle: true,
      format: "esm",
      platform: "node",
      target: "node18",
      sourcemap: "inline",
      logLevel: "warning",
      ...jsx,
    });
    const built = readdirSync(made).map((name) => join(made, name));
    return (
      spawnSync(process.execPath, ["--test", "--test-reporter=spec", ...built], {
        stdio: "inherit",
      }).status ?? 1
    );
  } finally {
    rmSync(made, { recursive: true, force: true });
  }
}

if (process.argv.includes("--test")) {
  process.exitCode = await runTests();
} else if (process.argv.includes("--watch")) {
  await (await esbuild.context(bundle)).watch();
} else {
  await esbuild.build(bundle);
}
