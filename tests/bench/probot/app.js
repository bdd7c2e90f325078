// A Probot app that does nothing with what it gets; started as Probot's documentation says.
import { run } from "probot";

run((app) => {
  app.on(["issues", "issue_comment"], async () => {});
});
