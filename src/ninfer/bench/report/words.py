"""Every sentence of a report, in English and Chinese."""

from __future__ import annotations

from typing import Any, Literal

Language = Literal["en", "zh"]

WORDS: dict[str, tuple[str, str]] = {
    # Headings
    "title": ("Comparison of {num} runs", "{num} 组运行对比"),
    "section runs": ("1. Runs", "1. 变体说明"),
    "section overview": ("2. Overview", "2. 总览指标"),
    "section scenarios": ("3. Decode rate by scenario, tok/s", "3. 分场景 decode 吞吐（tok/s）"),
    "section pairs": ("4. Pairs that may be compared", "4. 可比对照"),
    "section apart": ("5. Variants apart", "5. 单独列示的变体（不可比）"),
    "section limits": ("6. Limits of what may be concluded", "6. 结论的限制"),
    "section appendix": ("7. Appendix: every run", "7. 附录：各运行明细"),
    "pair controlled": ("{left} and {right}: controlled comparison", "{left} 与 {right}：严格对照"),
    "pair repeatability": ("{left} and {right}: repeatability", "{left} 与 {right}：重复性"),
    # Column and row names
    "run": ("run", "运行"),
    "engine": ("engine", "引擎"),
    "artifact": ("artifact", "模型文件"),
    "draft": ("draft", "draft 配置"),
    "label": ("declared settings", "声明的设置"),
    "unrecorded facts": ("facts unrecorded", "未记录事实数"),
    "compared": ("compared with", "参与对照"),
    "quantity": ("quantity", "指标"),
    "scenario": ("scenario", "场景"),
    "prompt tokens": ("prompt tokens", "Prompt tok"),
    "completion tokens": ("completion tokens", "生成 tok"),
    "all tokens": ("all tokens", "总 tok"),
    "load s": ("load, s", "加载 s"),
    "request s": ("all requests, s", "请求总时间 s"),
    "prefill_rate": ("prefill, tok/s", "Prefill tok/s"),
    "decode_rate": ("decode, tok/s", "Decode tok/s"),
    "end_to_end_rate": ("end to end, tok/s", "端到端 tok/s"),
    "ttft": ("TTFT, s", "TTFT s"),
    "request_time": ("request, s", "单请求 s"),
    "draft window": ("draft window", "draft 窗口"),
    "acceptance": ("acceptance", "接受率"),
    "tokens_per_round": ("tokens per round", "每轮 tok"),
    "round_time": ("round time, ms", "每轮耗时 ms"),
    "truncated": ("truncated", "截断"),
    "empty": ("empty answers", "空回答"),
    "failed": ("failed", "失败"),
    "change": ("change", "差异"),
    "interval": ("95 % interval", "95 % 区间"),
    "smallest": ("smallest detectable", "最小可检出差异"),
    "verdict": ("verdict", "判定"),
    "reason": ("why not comparable", "不可比原因"),
    "pair": ("pair", "组合"),
    "fact": ("fact", "事实"),
    "value": ("value", "取值"),
    "origin": ("origin", "来源"),
    "part": ("part", "部分"),
    "seconds": ("seconds", "秒"),
    "prefill s": ("prefill, s", "prefill s"),
    "decode s": ("decode, s", "decode s"),
    "total s": ("total, s", "total s"),
    "finish": ("finish", "finish"),
    "repeat": ("repeat", "重复"),
    "latency": ("ms, median / 99 %", "ms，中位 / 99 %"),
    "latency TTFT": ("TTFT", "TTFT"),
    "latency first answer": ("first token of the answer", "回答首 token"),
    "latency TPOT": ("time per token (TPOT)", "每 token 时间（TPOT）"),
    "latency token gap": ("gap between tokens", "token 间隔"),
    "latency stall": ("longest stall of a request", "单请求最长停顿"),
    "latency latency": ("request", "请求"),
    "latency latency as planned": ("request, from its planned time", "请求（自计划时刻起）"),
    "late": ("sent late", "迟发"),
    # Values
    "unrecorded": ("unrecorded", "未记录"),
    "nobody": ("none", "无"),
    "faster": ("faster", "更快"),
    "slower": ("slower", "更慢"),
    "no difference shown": ("no difference shown", "未显示差异"),
    "invalid": ("invalid", "无效"),
    "single sample": ("single sample", "单次样本"),
    "cold": ("cold", "冷"),
    "warm": ("warm", "热"),
    "partly cached": ("partly cached", "部分缓存"),
    "load": ("model load", "模型加载"),
    "prepare": ("preparation", "准备"),
    "queue": ("queue", "排队"),
    "prefill": ("prefill", "prefill"),
    "decode speed": ("speed of decode", "decode 速度"),
    "output length": ("length of answers", "生成长度"),
    "other": ("other", "其他"),
    "sum": ("sum", "合计"),
    "verify": ("verification", "验证"),
    "sample": ("sampling", "采样"),
    "rollback": ("rollback", "回滚"),
    "chosen": ("chosen", "指定"),
    "default": ("default", "默认"),
    "auto": ("planned", "自动"),
    "observed": ("observed", "观测"),
    "declared": ("declared", "声明"),
    # Conclusions. {difference} is "`draft.backend` (mtp → dflash2)".
    "conclude faster": (
        "{right} decodes faster than {left}: {change} ({low} to {high}; {a} → {b} tok/s, {rounds} repeats), "
        "and {difference} is all that differs",
        "{right} 的 decode 比 {left} 快：{change}（{low} 至 {high}；{a} → {b} tok/s，{rounds} 次重复），"
        "两者仅 {difference} 不同",
    ),
    "conclude slower": (
        "{right} decodes slower than {left}: {change} ({low} to {high}; {a} → {b} tok/s, {rounds} repeats), "
        "and {difference} is all that differs",
        "{right} 的 decode 比 {left} 慢：{change}（{low} 至 {high}；{a} → {b} tok/s，{rounds} 次重复），"
        "两者仅 {difference} 不同",
    ),
    "conclude no difference shown": (
        "No difference in decode speed is shown between {left} and {right}, which differ in {difference}: {change} "
        "({low} to {high}; {a} → {b} tok/s, {rounds} repeats, which would have shown {smallest})",
        "{left} 与 {right} 仅 {difference} 不同，未显示 decode 差异：{change}（{low} 至 {high}；{a} → {b} tok/s，"
        "{rounds} 次重复，可检出 {smallest}）",
    ),
    "conclude single": (
        "{left} and {right} differ in {difference} alone; in a single sample per prompt decode changes by {change} "
        "({a} → {b} tok/s), which is no verdict",
        "{left} 与 {right} 仅 {difference} 不同；每个 prompt 单次样本，decode 变化 {change}（{a} → {b} tok/s），"
        "不构成判定",
    ),
    "conclude invalid": (
        "The comparison of {left} and {right}, which differ in {difference}, is invalid: {why}",
        "{left} 与 {right}（{difference} 不同）的对照无效：{why}",
    ),
    "no values": ("decode rates are unknown", "decode 速率未知"),
    "nothing": ("nothing that was recorded", "已记录的事实均无"),
    "because rounds": (
        "tokens per round {e1} → {e2} ({e_change}), round time {t1} → {t2} ms ({t_change})",
        "每轮 tok {e1} → {e2}（{e_change}），每轮耗时 {t1} → {t2} ms（{t_change}）",
    ),
    "cause round time": ("the round time is the cause", "原因是每轮耗时"),
    "cause tokens": ("the tokens per round are the cause", "原因是每轮 tok"),
    "cause both": ("both act the same way", "两者同向作用"),
    "break even": (
        "break-even acceptance with {window} drafts per round is {even}, it was {acceptance}",
        "每轮 {window} 个 draft 时的盈亏平衡接受率为 {even}，实际 {acceptance}",
    ),
    "conclude apart": ("Not comparable with any other run: {names}", "与其他任何运行均不可比：{names}"),
    "conclude nothing comparable": ("No two of the runs may be compared", "没有任何两组运行可比"),
    # Paragraphs
    "one difference": ("They differ in one thing: {difference}.", "两者仅一处不同：{difference}。"),
    "no difference": ("They agree in every recorded fact.", "两者所有已记录事实均相同。"),
    "consequences": ("What follows from it: {facts}.", "由此引起的差异：{facts}。"),
    "vouched": (
        "{num} facts were not recorded and are taken as equal on the word of {by} (label {label}): {facts}.",
        "{num} 项事实未记录，按 {by} 的声明（标签 {label}）视为相同：{facts}。",
    ),
    "split": (
        "Decode rate = tokens per round / round time, so the logarithms add up: {rate} is the sum of "
        "{tokens} (tokens per round), {time} (round time) and {used} (accepted tokens cut off at the end of answers).",
        "decode 速率 = 每轮 tok / 每轮耗时，故对数可加：{rate} 为 {tokens}（每轮 tok）、"
        "{time}（每轮耗时）与 {used}（回答结尾处被截去的已接受 tok）之和。",
    ),
    "split basis": (
        "Rounds were not counted; tokens per round follow from the acceptance of the whole run and a constant window.",
        "轮数未计数；每轮 tok 由整次运行的接受率与固定窗口推得。",
    ),
    "acceptance warning": (
        "Acceptances of different windows are no measure of speed: compare tokens per round and round time.",
        "不同窗口的接受率不能衡量快慢：应比较每轮 tok 与每轮耗时。",
    ),
    "round parts": ("A round lasts longer by, in ms: {parts}.", "每轮多出的时间（ms）：{parts}。"),
    "time": (
        "Mean request time changes by {seconds} s; the parts add up to it:",
        "平均请求时间变化 {seconds} s，各部分之和即为此值：",
    ),
    "latency note": (
        "Latencies over all requests that ended well; those as planned count waiting in the client.",
        "所有正常结束请求的延迟；自计划时刻起者计入客户端内的等待。",
    ),
    "overview note": (
        "Side by side in the order named, for reading only: figures of different columns are compared in section 4 or "
        "not at all. Rates are sums of tokens over sums of seconds.",
        "按给定顺序并列，仅供阅读：不同列之间只有第 4 节的组合可比。速率为 tok 之和除以秒数之和。",
    ),
    "no pairs note": ("There is none.", "无。"),
    "apart note": (
        "Listed, never merged, ranked or credited: a difference between them has more than one possible cause.",
        "仅列示，不合并、不排名、不归因：它们之间的差异有不止一个可能原因。",
    ),
    "reason differs": ("{num} facts differ: {facts}", "{num} 项事实不同：{facts}"),
    "reason differs one": ("{facts} differs", "{facts} 不同"),
    "reason unrecorded": ("{num} facts are unrecorded in one or both: {facts}", "{num} 项事实至少一方未记录：{facts}"),
    "reason labels": (
        "settings are declared as {left} and {right}: something differs, what was not recorded",
        "设置声明为 {left} 与 {right}：存在差异，但具体差异未记录",
    ),
    "totals": (
        "Over all runs {truncated} of {all} requests ended at a limit, {empty}, "
        "{failed} of {all} requests failed.",
        "所有运行合计：{all} 个请求中 {truncated} 个达到上限，{empty}，{failed} 个失败。",
    ),
    "totals empty": ("{num} of {all} answers are empty", "{all} 个回答中 {num} 个为空"),
    "totals empty unrecorded": ("how many answers are empty was not recorded", "空回答数未记录"),
    "verdict count": (
        "{num} verdicts were made, each with its own chance of 5 % to show a difference that is not there.",
        "共作 {num} 次判定，每次各有 5 % 的概率显示并不存在的差异。",
    ),
    "sources": ("Rebuilt from records: {runs}.", "由运行记录重建：{runs}。"),
    # What an audit finds ("saw", told once per run or pair) and what it means (told once).
    "saw no samples": ("no sample ended well", "没有正常结束的样本"),
    "means no samples": ("Nothing can be concluded.", "无法得出任何结论。"),
    "saw failures": ("{failed} of {all} requests failed ({kinds})", "{all} 个请求中 {failed} 个失败（{kinds}）"),
    "means failures": (
        "Figures are of the other requests, so they are not of the whole workload.",
        "数字仅来自其余请求，不代表全部负载。",
    ),
    "saw truncated": ("{num} of {all} answers were cut at a limit", "{all} 个回答中 {num} 个在上限处截断"),
    "means truncated": (
        "Their length is the limit's: decode rates stand, end-to-end times and sums of tokens depend on the limit.",
        "其长度由上限决定：decode 速率有效，端到端时间与 token 总数受上限影响。",
    ),
    "saw emptiness unrecorded": ("whether answers are empty was not recorded", "回答是否为空未记录"),
    "means emptiness unrecorded": ("Speed may be of answers without use.", "速度可能来自无用的回答。"),
    "saw empty": ("{num} of {all} answers are empty", "{all} 个回答中 {num} 个为空"),
    "means empty": (
        "Their tokens went into reasoning: speed without use.",
        "其 token 全部用于 reasoning：有速度而无用处。",
    ),
    "saw short": (
        "{num} of {all} answers have fewer than {tokens} tokens after the first",
        "{all} 个回答中 {num} 个首 token 之后不足 {tokens} 个 token",
    ),
    "means short": ("A decode rate of so few steps says little.", "如此少的步数无法说明 decode 速率。"),
    "saw loops": ("{num} of {all} answers end in a loop", "{all} 个回答中 {num} 个以循环结尾"),
    "means loops": (
        "Repeated text is drafted too well: acceptance and decode rate are flattered.",
        "重复文本易被 draft 命中：接受率与 decode 速率偏高。",
    ),
    "saw single": ("one sample per prompt", "每个 prompt 仅一个样本"),
    "means single": (
        "These are single samples: chance and effect cannot be told apart.",
        "均为单次样本：无法区分偶然与效应。",
    ),
    "saw cached unrecorded": ("reused prompt tokens were not recorded", "复用的 prompt token 数未记录"),
    "means cached unrecorded": (
        "Prefill and TTFT may be those of cached prompts.",
        "prefill 与 TTFT 可能来自已缓存的 prompt。",
    ),
    "saw prefix hits": (
        "{num} of {all} requests reused {share} of all prompt tokens",
        "{all} 个请求中 {num} 个复用了前缀（占全部 prompt token 的 {share}）",
    ),
    "means prefix hits": (
        "TTFT is that of a warm prefix; prefill rates count computed tokens only.",
        "TTFT 为热前缀之值；prefill 速率仅计实算 token。",
    ),
    "saw context fill": (
        "the longest prompt, {prompt} tokens, fills {share} of the context of {context}",
        "最大 prompt {prompt} tok，为上下文 {context} 的 {share}",
    ),
    "means context fill": ("Nothing is said about fuller contexts.", "对更满的上下文不作结论。"),
    "saw busy": (
        "{load} runnable processes on {cpus} CPUs before the run",
        "运行前 {cpus} 个 CPU 上有 {load} 个可运行进程",
    ),
    "means busy": ("Other work shared what was measured.", "测量受其他负载影响。"),
    "saw load": ("loaded in {seconds} s ({state})", "加载 {seconds} s（{state}）"),
    "means load": (
        "In brackets the page cache before loading: load times compare only from one and the same known state.",
        "括号内为加载前 page cache 状态：仅当状态已知且相同时加载时间才可比。",
    ),
    "saw rounded": ("times are rounded to {resolution} s", "时间四舍五入至 {resolution} s"),
    "means rounded": (
        "Figures differ in their last digits from those of raw times.",
        "数字末位与原始时间所得者有别。",
    ),
    "saw no pairs": ("The runs share no sample", "两次运行没有共同样本"),
    "means no pairs": ("Nothing can be concluded.", "无法得出任何结论。"),
    "saw left out": ("{num} samples have no partner", "{num} 个样本没有配对"),
    "means left out": ("They take no part.", "不参与对照。"),
    "saw order": ("The runs were taken {order}", "两次运行的先后关系：{order}"),
    "means order": (
        "A drift of the machine cannot be told from an effect; of interleaved runs it can.",
        "机器的漂移与效应无法区分；交错运行则可以。",
    ),
    "partly interleaved": ("partly interleaved", "部分交错"),
    "one after the other": ("one after the other", "先后进行"),
    "order unrecorded": ("in an unrecorded order", "未记录"),
    "saw boots": (
        "The machine was restarted in between, or is another one of the same kind",
        "其间机器重启过，或为同型号的另一台",
    ),
    "means boots": ("Absolute rates may have drifted.", "绝对速率可能已漂移。"),
    "saw lengths": ("{num} of {all} pairs have answers of different length", "{all} 对中 {num} 对的回答长度不同"),
    "means lengths": ("End-to-end figures compare different work.", "端到端数字比较的是不同的工作量。"),
    "saw other output": ("{num} of {all} pairs have different answers", "{all} 对中 {num} 对的回答不同"),
    "means other output": (
        "Acceptance and decode rate were taken on different texts.",
        "接受率与 decode 速率取自不同文本。",
    ),
    "saw same output": ("All {all} pairs have identical answers", "全部 {all} 对的回答完全相同"),
    "means same output": ("Both runs did the same work.", "两次运行完成了同样的工作。"),
    "saw output unrecorded": (
        "Whether answers are identical was not recorded for every pair",
        "并非每一对都记录了回答是否相同",
    ),
    "means output unrecorded": ("Rates may be of different texts.", "速率可能取自不同文本。"),
    "saw other hits": ("The runs reused different numbers of prompt tokens", "两次运行复用的 prompt token 数不同"),
    "means other hits": (
        "Prefill, TTFT and request times are not of the same work.",
        "prefill、TTFT 与请求时间不是同样的工作。",
    ),
    "saw loads": ("Page cache before loading was {states}", "加载前 page cache 状态为 {states}"),
    "means loads": ("Load times are not comparable.", "加载时间不可比。"),
    # The summary of campaigns
    "summary title": ("Campaigns", "测试汇总"),
    "summary note": (
        "One section per campaign, the latest first. Figures of different campaigns are not compared.",
        "每次测试一节，最新在前。不同测试之间的数字不作比较。",
    ),
    # Plots
    "plot changes": ("Change from {left} to {right}, with 95 % intervals where there is more than one sample",
                     "{left} 到 {right} 的变化；多于一个样本时附 95 % 区间"),
    "plot change axis": ("change", "变化"),
    "plot rounds": (
        "Decoding by rounds: each line from the origin is one speed, the flatter the faster",
        "按轮看 decode：过原点的每条线为同一速度，越平越快",
    ),
    "plot rounds across": ("tokens per round", "每轮 tok"),
    "plot rounds upwards": ("ms per round", "每轮 ms"),
    "plot scenarios": ("Decode rate by scenario", "分场景 decode 速率"),
    "separator": (", ", "、"),
    "clause": ("; ", "；"),
    "colon": (": ", "："),
    "space": (" ", ""),
    "full stop": (".", "。"),
}  # fmt: skip


class Words:
    """The sentences of one language."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._place = ("en", "zh").index(language)

    def __call__(self, key: str, **values: Any) -> str:
        """The sentence of `key` with `values` in it."""
        return WORDS[key][self._place].format(**values)

    def list(self, items: list[str]) -> str:
        """Items one after the other, as the language separates them."""
        return self("separator").join(items)
