// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package postmortem

import (
	"regexp"
	"strings"

	"github.com/cohort-dist/cohort/internal/diagnose/stacks"
)

// traceback is a Python traceback found in text.
type traceback struct {
	text      string // all of it, chained ones included
	exception string // "ValueError: bad batch 17"
	where     string // "train (train.py:17)"
	notRun    bool   // Python did not find the program
}

const (
	traceStart = "Traceback (most recent call last):"
	groupStart = "+ Exception Group " + traceStart
	chained    = "During handling of the above exception, another exception occurred:"
	caused     = "The above exception was the direct cause of the following exception:"
)

// rankPrefix is what PyTorch puts before the lines of an uncaught exception once a process group exists.
var rankPrefix = regexp.MustCompile(`^\[rank\d+\]: ?`)

var fileLine = regexp.MustCompile(`^ *File "(.*)", line (\d+)(?:, in (.*))?`)

// plainLines splits text into lines and takes PyTorch's prefix off them.
func plainLines(text string) []string {
	lines := strings.Split(withoutIgnored(text), "\n")
	for i, line := range lines {
		lines[i] = rankPrefix.ReplaceAllString(strings.TrimRight(line, "\r"), "")
	}
	return lines
}

// ignored begins what the interpreter says of an exception that it does not raise, most often while it ends: of __del__, of atexit.
var ignored = regexp.MustCompile(`^(?:Exception ignored (?:in|on|while|from)\b|Error in atexit\b)`)

// withoutIgnored removes the tracebacks of exceptions that the interpreter has ignored.
func withoutIgnored(text string) string {
	if !strings.Contains(text, "Exception ignored ") && !strings.Contains(text, "Error in atexit") {
		return text
	}
	lines := strings.Split(text, "\n")
	var kept []string
	for i := 0; i < len(lines); i++ {
		if !ignored.MatchString(lines[i]) || i+1 >= len(lines) || strings.TrimSpace(lines[i+1]) != traceStart {
			kept = append(kept, lines[i])
			continue
		}
		i += 2
		for i < len(lines) && strings.HasPrefix(lines[i], " ") {
			i++
		}
	}
	return strings.Join(kept, "\n")
}

// lastTraceback finds the last traceback in text. Of chained exceptions it names the one that started the trouble when
// the later ones are consequences of other workers' ends.
func lastTraceback(text string) traceback {
	lines := plainLines(text)
	blocks := parseBlocks(lines)
	if len(blocks) == 0 {
		return noTraceback(lines)
	}
	// The last chain: blocks that are connected by the two sentences.
	from := len(blocks) - 1
	for from > 0 && blocks[from].chained {
		from--
	}
	chain := blocks[from:]
	pick := chain[len(chain)-1]
	if kindOf(pick.exception).Consequence() || strings.HasPrefix(pick.exception, "KeyboardInterrupt") {
		for _, b := range chain {
			if !kindOf(b.exception).Consequence() && !strings.HasPrefix(b.exception, "KeyboardInterrupt") {
				pick = b
				break
			}
		}
	}
	return traceback{
		text:      strings.TrimSpace(strings.Join(lines[chain[0].from:chain[len(chain)-1].to], "\n")),
		exception: pick.exception, where: pick.where,
	}
}

// Raised returns the exception with which text ends, and where it was raised: "RuntimeError: no data (work (train.py:3))". It
// is empty if there is none, or if something else was printed after it, or may have been: the second line of an exception's own
// text looks like any other output unless PyTorch has marked it.
func Raised(text string) string {
	text = strings.TrimSpace(withoutIgnored(text))
	lines := plainLines(text)
	blocks := parseBlocks(lines)
	if len(blocks) == 0 || !onlyNative(lines[blocks[len(blocks)-1].to:]) {
		return ""
	}
	last := blocks[len(blocks)-1]
	if strings.Contains(last.exception, "\n") && !rankPrefix.MatchString(strings.Split(text, "\n")[last.to-1]) {
		return ""
	}
	if last.where == "" {
		return firstLine(last.exception)
	}
	return firstLine(last.exception) + " (" + last.where + ")"
}

// crashed begins the Python stack that faulthandler prints of a thread, of the one that crashed with the first word; the C stack of
// Python 3.14 has another heading.
var crashed = regexp.MustCompile(`^(Current t|T)hread 0x\S+ .*\(most recent call first\):$`)

var crashLine = regexp.MustCompile(`^  File "(.*)", line (\d+) in (.*)$`)

// crashStack finds the Python stack of a crash. Unlike a traceback it has the innermost call first. A thread of C++ has none: then it is
// the stack of the main thread, which is printed last, and own is false.
func crashStack(stderr string) (t traceback, own bool) {
	lines := strings.Split(stderr, "\n")
	for i, line := range lines {
		heading := crashed.FindStringSubmatch(line)
		if heading == nil {
			continue
		}
		t = traceback{}
		end := i + 1
		for ; end < len(lines) && strings.HasPrefix(lines[end], "  "); end++ {
			if m := crashLine.FindStringSubmatch(lines[end]); m != nil && t.where == "" && !stacks.Library(m[1]) {
				t.where = m[3] + " (" + m[1] + ":" + m[2] + ")"
			}
		}
		t.text = strings.Join(lines[i:end], "\n")
		if heading[1] != "T" {
			return t, true
		}
	}
	return t, false
}

// block is one "Traceback ..." with its exception.
type block struct {
	from, to         int
	exception, where string
	chained          bool // it follows from the block before
	own              bool // where is a line of the program itself
}

// passes takes a line of a traceback. The innermost line of the program itself is where it was raised, or the innermost of all.
func (b *block) passes(line string) {
	m := fileLine.FindStringSubmatch(line)
	if m == nil || b.own && stacks.Library(m[1]) {
		return
	}
	b.own = b.own || !stacks.Library(m[1])
	b.where = m[1] + ":" + m[2]
	if m[3] != "" {
		b.where = m[3] + " (" + b.where + ")"
	}
}

// groupLine is a line of the traceback of a group of exceptions, which Python draws as a tree.
var groupLine = regexp.MustCompile(`^ *[|+](?: |-|$)`)

// groupPart is the line before each of the exceptions in a group. The first group is there if those that follow are in
// the exception before, the second if there are too many to print.
var groupPart = regexp.MustCompile(`^ *(\+-)?\+-{16} (?:\d+|(\.\.\.)) -{16}$`)

// parseGroup reads the traceback of a group of exceptions. The exception is the one in it that explains the others, or the group itself if
// several do; all of them are in the text.
func parseGroup(lines []string, from int) block {
	b := block{from: from, to: groupEnd(lines, from)}
	var parts [][]string // the lines of the exceptions in it
	for _, line := range lines[from+1 : b.to] {
		text, inside := strings.CutPrefix(strings.TrimLeft(line, " "), "|")
		text = strings.TrimPrefix(text, " ")
		part := groupPart.FindStringSubmatch(line)
		switch {
		case part != nil && part[2] != "":
			return b // the rest cannot be told
		case part != nil:
			if part[1] != "" && len(parts) > 0 {
				parts = parts[:len(parts)-1] // that one is a group, too
			}
			parts = append(parts, nil)
		case !inside && groupLine.MatchString(line): // the end of one
		case len(parts) > 0:
			parts[len(parts)-1] = append(parts[len(parts)-1], text)
		case b.exception != "" || !inside:
		case strings.HasPrefix(text, " "):
			b.passes(text)
		default:
			b.exception = text
		}
	}
	b.explain(parts)
	return b
}

// groupEnd returns the line after the traceback of a group. A text of several lines in it breaks the tree, which is closed all the same.
func groupEnd(lines []string, from int) int {
	margin := lines[from][:strings.IndexByte(lines[from], '+')]
	for i := from + 1; i < len(lines) && lines[i] != margin+groupStart; i++ {
		if lines[i] == margin+"  +"+strings.Repeat("-", 36) {
			return i + 1
		}
	}
	to := from + 1
	for to < len(lines) && groupLine.MatchString(lines[to]) {
		to++
	}
	return to
}

// explain takes the exception of a group that explains it: the only one that is not a consequence of another worker's
// end, or the first if all are.
func (b *block) explain(parts [][]string) {
	var first, own []traceback
	for _, part := range parts {
		t := lastTraceback(strings.Join(part, "\n"))
		if t.exception == "" && len(part) > 0 && part[0] != traceStart {
			t.exception = part[0] // it was never raised
		}
		switch {
		case t.exception == "":
			return // cut off
		case !kindOf(t.exception).Consequence():
			own = append(own, t)
		case first == nil:
			first = append(first, t)
		}
	}
	if len(own) == 0 {
		own = first
	}
	if len(own) != 1 {
		return
	}
	if b.exception = own[0].exception; own[0].where != "" {
		b.where = own[0].where
	}
}

func parseBlocks(lines []string) []block {
	var blocks []block
	linked := false
	for i := 0; i < len(lines); i++ {
		if s := strings.TrimSpace(lines[i]); s == chained || s == caused {
			linked = len(blocks) > 0
			continue
		}
		if strings.TrimSpace(lines[i]) == groupStart {
			b := parseGroup(lines, i)
			b.chained, linked = linked, false
			if i = b.to - 1; b.exception != "" {
				blocks = append(blocks, b)
			}
			continue
		}
		if strings.TrimSpace(lines[i]) != traceStart {
			continue
		}
		b := block{from: i, chained: linked}
		linked = false
		i++
		for ; i < len(lines) && (strings.HasPrefix(lines[i], " ") || lines[i] == ""); i++ {
			b.passes(lines[i])
		}
		if i >= len(lines) || strings.TrimSpace(lines[i]) == traceStart {
			break // cut off
		}
		b.exception = lines[i]
		// The text of an exception may have several lines; it ends at an empty one, or where something else begins.
		for i+1 < len(lines) && lines[i+1] != "" && strings.TrimSpace(lines[i+1]) != traceStart &&
			!nativeLog.MatchString(lines[i+1]) && len(b.exception) < 4096 {
			i++
			b.exception += "\n" + lines[i]
		}
		b.to = i + 1
		blocks = append(blocks, b)
	}
	return blocks
}

// noTraceback finds what Python says without one: a script that does not exist, a syntax error.
func noTraceback(lines []string) traceback {
	for i := len(lines) - 1; i >= max(0, len(lines)-20); i-- {
		line := lines[i]
		if strings.Contains(line, ": can't open file ") || strings.Contains(line, ": No module named ") ||
			strings.Contains(line, "Error while finding module") {
			return traceback{exception: line, notRun: true}
		}
		if name, _, found := strings.Cut(line, ": "); found && (name == "SyntaxError" || name == "IndentationError" || name == "TabError") {
			t := traceback{exception: line}
			for j := i; j >= 0; j-- {
				if m := fileLine.FindStringSubmatch(lines[j]); m != nil {
					t.where = m[1] + ":" + m[2]
					t.text = strings.Join(lines[j:i+1], "\n")
					break
				}
			}
			return t
		}
	}
	return traceback{}
}
