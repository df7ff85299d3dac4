// Style sheets are imported only for the bundler, which collects them.
declare module "*.css";
