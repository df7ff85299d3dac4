// Style sheets are imported for their effect alone: the bundler collects them.
declare module "*.css";
