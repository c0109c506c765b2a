"""A worker with scripted times, for tests: `scripted_worker.py NAME LOG SCRIPT`.

SCRIPT is JSON: `seconds` of a step, `slow` a factor for settings that contain "slow", `die_on` a value of the settings
that ends the process at load, `refuse` a value that is refused, `missing` a reason. Every request's word is appended to
LOG with the worker's name, so that the order over several workers can be checked.
"""

import json
import sys


def main() -> None:
    name, log, script = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    if "missing" in script:
        print(json.dumps({"missing": script["missing"]}), flush=True)
        return
    print("noise for the log", file=sys.stderr, flush=True)
    print(json.dumps({"engine": name, "version": "9", "system": "SIMD = 1"}), flush=True)
    factor = 1.0
    for line in sys.stdin:
        request = json.loads(line)
        word = request["do"]
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{name} {word}\n")
        answer = {"peak_rss_bytes": 1000}
        if word == "load":
            values = list(request["settings"].values())
            if script.get("die_on") in values:
                print("about to end\nfatal: scripted death\nlast words", file=sys.stderr, flush=True)
                sys.exit(3)
            if script.get("refuse") in values:
                answer = {"error": "refused on purpose"}
            factor = script.get("slow", 1.0) if "slow" in values else 1.0
        else:
            repeats = request["repeats"] if "repeats" in request else len(request["next_ids"])
            answer["seconds"] = [script["seconds"] * factor] * repeats
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
