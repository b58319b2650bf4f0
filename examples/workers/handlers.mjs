// Handlers for worker.mjs: functions by kind.
import { setTimeout as sleep } from "node:timers/promises";

export default {
  // {"words": "a b c"} => 3
  count: ({ words }) => words.split(/\s+/).filter(Boolean).length,

  // What `tenure conform worker` asks of a worker: N effects, then an end.
  async conform({ effects, every_s, effect_url, outcome }) {
    for (let n = 0; n < effects; n++) {
      await fetch(effect_url, { method: "POST" });
      await sleep(every_s * 1000);
    }
    if (outcome !== "succeed") throw new Error("told to fail");
    return { effects };
  },
};
