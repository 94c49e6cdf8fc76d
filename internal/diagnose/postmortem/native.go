// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"cmp"
	"regexp"
	"strings"
)

// crash explains the end of a worker by a signal that it brought upon itself.
func crash(d Death, sig int, trace traceback) Cause {
	cause := Cause{
		Kind: Crash, Words: "crashed: " + crashes[sig] + " (" + signalName(sig) + ")", Advice: crashAdvice(sig, d.Stderr),
		Exception: trace.exception, Where: trace.where, Traceback: trace.text,
	}
	place := ""
	if at, own := crashStack(d.Stderr); at.text != "" && trace.exception == "" {
		cause.Where, cause.Traceback = at.where, at.text
		switch {
		case at.where != "" && own:
			place = " in " + at.where
		case at.where != "":
			place = " while it was in " + at.where
		}
	}
	cause.Words += place
	text := cmp.Or(thrown(d.Stderr), ended(d.Stderr))
	switch size := sizeMismatch(d.Stderr); {
	case size != "":
		cause.Words += "; " + size
		cause.Advice = "compare the tensors that the ranks pass and the lines that they are in: the sizes also differ if one rank " +
			"is a call ahead of the others"
	case trace.exception != "" && !kindOf(trace.exception).Consequence():
		// Python said why before native code gave up over it.
		cause.Kind, cause.Words = kindOf(trace.exception), "raised "+firstLine(trace.exception)+", and then "+cause.Words
		cause.Advice = cmp.Or(adviceFor(trace.exception), cause.Advice)
	case kindOf(text).Consequence():
		cause.Kind, cause.Exception, cause.Advice = kindOf(text), text, adviceFor(text)
		cause.Words = consequence(text) + "; PyTorch ended it (" + signalName(sig) + ")" + place
	case text != "":
		if kind := kindOf(text); kind != Exception {
			cause.Kind = kind
		}
		cause.Exception, cause.Advice = text, cmp.Or(adviceFor(text), cause.Advice)
		cause.Words += ": " + firstLine(text)
	}
	return cause
}

// nativeLog is a message of PyTorch's own log: "[E1117 19:01:42.369975442 ProcessGroupNCCL.cpp:612] ...".
var nativeLog = regexp.MustCompile(`^\[[IWEF]\d{4} [0-9:.]+ `)

// nativeRest is a line that may follow in such a message: what NCCL said, and stacks of C++ and of the failed collective.
var nativeRest = regexp.MustCompile(`^$|^nccl\w+: |^Last error:$|^Exception raised from |^frame #\d+: |^#\d+ \S+ from `)

// onlyNative reports whether lines are messages of PyTorch's own log alone. When a rank of NCCL ends, it prints some after everything else.
func onlyNative(lines []string) bool {
	inside, said := false, false // in a message; NCCL's last error comes next
	for _, line := range lines {
		switch {
		case nativeLog.MatchString(line):
			inside, said = true, false
		case line == "" || inside && (said || nativeRest.MatchString(line)):
			said = line == "Last error:"
		default:
			return false
		}
	}
	return true
}

// thrownText is what C++ prints of an uncaught exception. Its first line says why.
var thrownText = regexp.MustCompile(`(?m)^terminate called after throwing an instance of '[^'\n]+'\r?\n  what\(\):  (.+)$`)

// watchdog begins what the thread throws with which PyTorch watches over NCCL. It ends the process so because of what it has found.
var watchdog = regexp.MustCompile(`^(?:\[[^\]]*\] )?(?:Process group|NCCL) watchdog thread terminated with exception: (?:\[Rank \d+\] )?`)

// thrown returns why C++ has ended a process, "" if it has not said so. Python knows nothing of it.
func thrown(stderr string) string {
	return strings.TrimSuffix(watchdog.ReplaceAllString(last(thrownText, stderr), ""), ".")
}

// last returns what the last match of an expression in text has in its group, "" if there is none.
func last(expression *regexp.Regexp, text string) string {
	all := expression.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}

// ncclError is how PyTorch tells of an error of NCCL: which line of PyTorch has noticed it, and what NCCL said of it some lines later.
var ncclError = regexp.MustCompile(
	`NCCL error in: \S+, ([^(,\n]*[^(,\n ])(?: \(run with [^)\n]*\))?, NCCL version \S+\n(?:.*\n){0,2}Last error:\n *(\S.*)`)

// lastError is how the newer backend for NCCL tells of it: "NCCL AllReduce failed: invalid usage \nNCCL Last Error: Duplicate GPU ...".
var lastError = regexp.MustCompile(` ?\nNCCL Last Error: *(\S.*)`)

// brief puts what NCCL said into the first line of an exception.
func brief(exception string) string {
	return lastError.ReplaceAllString(ncclError.ReplaceAllString(exception, "NCCL error, $1: $2"), ": $1")
}

// fatal is the message of PyTorch's own log with which it ends the process: "[F1119 06:47:03.02 ProcessGroupNCCL.cpp:1653] [PG ID 0] ...".
var fatal = regexp.MustCompile(`(?m)^(?:\[rank\d+\]:)?\[F\d{4} [^\]\n]*\] (?:\[[^\]\n]*\] ?)*(\S.*)$`)

// Messages of PyTorch's log before it ends a process. Those of the newer backend begin with "[TC][rank=0][name=...]".
var (
	timedOut    = regexp.MustCompile(`(Watchdog caught collective operation timeout: .*)`)
	signalled   = regexp.MustCompile(`(Observed flight recorder dump signal from another rank\b.*)`)
	aborting    = regexp.MustCompile(`\[TC\].* Aborting process .*\bdue to (timeout|error)\b`)
	timeoutTime = regexp.MustCompile(`\[TC\].* Operation (timed out after \d+ ms)`)
	asyncError  = regexp.MustCompile(`\[TC\].*\bnccl hit async error\b[^:\n]*: ([^(\n]*[^(\n ])`)
	eventError  = regexp.MustCompile(`\[TC\].* CUDA error during (?:start|end) event query: (.*)`)
)

// ended returns why a thread of PyTorch that watches over NCCL has ended the process without an exception, "" if none has.
func ended(stderr string) string {
	text := last(fatal, stderr)
	if strings.HasSuffix(text, "due to collective timeout or exception.") {
		text = cmp.Or(last(timedOut, stderr), last(signalled, stderr), text)
	}
	switch last(aborting, stderr) {
	case "timeout":
		text = "NCCL operation " + cmp.Or(last(timeoutTime, stderr), "timed out")
	case "error":
		text = operationFailed + failure(stderr)
	}
	return strings.TrimSuffix(text, ".")
}

const operationFailed = "NCCL operation failed"

// failure says why an operation of the newer backend has failed: its log has the reason, its exception has not.
func failure(stderr string) string {
	if text := last(eventError, stderr); text != "" {
		return ": " + text
	}
	if text := last(asyncError, stderr); text != "" {
		return ": NCCL Async Error: " + text
	}
	return ""
}
