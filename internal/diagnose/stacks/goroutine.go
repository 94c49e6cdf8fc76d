// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

// This file reads the text in which the Go runtime prints the stacks of goroutines.

import (
	"strconv"
	"strings"
)

// ParseGo returns the goroutines of a text as threads: ID is the goroutine's number, Kernel what it waits for, Minutes for
// how long, and State R for one that runs or could, else S. What makes no sense is passed over.
func ParseGo(text string) []Thread {
	var all []Thread
	for block := range strings.SplitSeq(text, "\n\n") {
		if t, ok := parseGoroutine(strings.Split(strings.Trim(block, "\n"), "\n")); ok {
			all = append(all, t)
		}
	}
	return all
}

func parseGoroutine(lines []string) (Thread, bool) {
	// goroutine 1 [chan receive, 2 minutes]:
	head, found := strings.CutPrefix(lines[0], "goroutine ")
	number, rest, _ := strings.Cut(head, " ")
	id, err := strconv.Atoi(number)
	open, end := strings.IndexByte(rest, '['), strings.LastIndexByte(rest, ']')
	if !found || err != nil || open < 0 || end < open {
		return Thread{}, false
	}
	state, more, _ := strings.Cut(rest[open+1:end], ",")
	t := Thread{ID: id, Name: "goroutine", State: "S", Kernel: state}
	if state == "running" || state == "runnable" {
		t.State = "R"
	}
	for part := range strings.SplitSeq(more, ",") { // " 2 minutes", " locked to thread"
		if n, found := strings.CutSuffix(strings.TrimSpace(part), " minutes"); found {
			minutes, _ := strconv.ParseUint(n, 10, 16)
			t.Minutes = int(minutes)
		}
	}
	for i := 1; i+1 < len(lines); i += 2 {
		function, created := strings.CutPrefix(lines[i], "created by ")
		if created {
			break // the function that started it is not a call
		}
		file, line, ok := sourcePosition(lines[i+1])
		if !ok {
			i-- // "...additional frames elided..." stands alone
			continue
		}
		t.Frames = append(t.Frames, Frame{Func: functionName(function), File: file, Line: line})
	}
	return t, len(t.Frames) > 0
}

// sourcePosition reads "\t/src/train.go:88 +0x1d".
func sourcePosition(text string) (file string, line int, ok bool) {
	text, found := strings.CutPrefix(text, "\t")
	if !found {
		return "", 0, false
	}
	text, _, _ = strings.Cut(text, " +0x")
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 {
		return "", 0, false
	}
	line, err := strconv.Atoi(text[colon+1:])
	return text[:colon], line, err == nil
}

// functionName takes the arguments off a call: "main.(*T).load(0xc000, ...)" is main.(*T).load.
func functionName(call string) string {
	if open := strings.LastIndexByte(call, '('); open > 0 && strings.HasSuffix(call, ")") {
		call = call[:open]
	}
	return strings.ReplaceAll(call, "[...]", "")
}
