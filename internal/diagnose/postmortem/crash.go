// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"cmp"
	"regexp"
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
