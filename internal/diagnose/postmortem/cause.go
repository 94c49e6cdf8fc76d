// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package postmortem says why a worker ended, from its exit status, its last output and the kernel's counters, and which
// of several failed workers is the cause. It is pure: it takes evidence and returns sentences.
package postmortem

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/util/printable"
)

// Kind is a class of causes. The order is that of blame: of several failures the one with the smallest kind explains the
// others.
type Kind int

// The kinds of causes.
const (
	// Exception is an error in the program's own code.
	Exception Kind = iota
	// memory is an end for lack of memory, of the host, the cgroup or a device.
	memory
	// device is an error of an accelerator.
	device
	// notStarted is a program that could not be started.
	notStarted
	// Crash is a fatal signal of the worker's own: a segmentation fault, an abort.
	Crash
	// exitCode is an exit status that nothing explains.
	exitCode
	// Killed is a signal from outside.
	Killed
	// Timeout is the end of a wait for another worker.
	Timeout
	// LostPeer is a connection that another worker closed.
	LostPeer
	// Stopped is an end that the launcher itself asked for.
	Stopped
	// Success is an exit status of 0.
	Success
)

var kindNames = [...]string{
	"exception", "memory", "device", "not_started", "crash", "exit_code", "killed", "timeout", "lost_peer", "stopped", "success",
}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return "kind " + strconv.Itoa(int(k))
	}
	return kindNames[k]
}

// MarshalText returns the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a name.
func (k *Kind) UnmarshalText(text []byte) error {
	i := slices.Index(kindNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("postmortem: unknown kind %q", text)
	}
	*k = Kind(i)
	return nil
}

// Consequence reports whether the cause points to another worker.
func (k Kind) Consequence() bool { return k == Timeout || k == LostPeer }

// Death is what is known about the end of a worker.
type Death struct {
	// Code is the exit status, or -N for signal N.
	Code int
	// Stderr is the end of what it printed there.
	Stderr string
	// ErrorFile is what @record wrote, or nil.
	ErrorFile []byte
	// Refused is why it could not be started, or "".
	Refused string
	// OutOfMemory says that the kernel counted a kill for memory in the worker's cgroup.
	OutOfMemory bool
	// RSS is the largest resident memory of the worker in bytes, Limit that of its cgroup; 0: not known.
	RSS, Limit int64
	// Output says why what it prints cannot be written, "" if it can: "its log files are on a full disk".
	Output string
	// Nodes is the number of nodes of the job, 0 if it is not known.
	Nodes int
	// Sent are the signals that the launcher had sent before.
	Sent Signals
}

// Cause is why a worker ended.
type Cause struct {
	Kind Kind `json:"kind"`
	// Words is the end of a sentence that begins with the worker: "raised ValueError: bad batch 17".
	Words string `json:"words"`
	// Exception is "ValueError: bad batch 17", Traceback what Python printed, Where the innermost line of it.
	Exception string `json:"exception,omitempty"`
	Where     string `json:"where,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	// Advice says what to try, or is empty.
	Advice string `json:"advice,omitempty"`
}

// Explain says why a worker ended.
func Explain(d Death) Cause {
	if d.Refused != "" {
		return Cause{Kind: notStarted, Words: "could not be started: " + d.Refused, Advice: refusalAdvice(d.Refused)}
	}
	if d.Code == 0 {
		return Cause{Kind: Success, Words: "succeeded"}
	}
	trace := pickTraceback(d)
	cause := Cause{Exception: trace.exception, Where: trace.where, Traceback: trace.text}
	sig := signalOf(d.Code)
	switch {
	case d.Sent.stopped() && (sig == 15 || sig == 9 || sig == 2 || slices.Contains(d.Sent.Ending, sig) || d.Code > 0 && interrupted(d)):
		cause = stopped(d, sig, trace)
	case d.Output != "" && (sig == 13 || trace.exception == "" && d.Code > 0 || strings.Contains(trace.exception, "Broken pipe")):
		cause.Kind, cause.Words, cause.Advice = exitCode, "could not write its output and ended with "+Code(d.Code)+": "+d.Output,
			adviceFor(d.Output)
	case sig == 9 && d.OutOfMemory:
		cause.Kind, cause.Words = memory, "was killed by the kernel: out of memory"+sizes(d)
		cause.Advice = moreMemory
	case sig == 9:
		cause.Kind, cause.Words = Killed, "was killed by SIGKILL, neither by the launcher nor for the memory limit of its cgroup"
		cause.Advice = "check the kernel log (dmesg) for an out-of-memory kill by the host, and whether another user or service " +
			"kills processes here"
	case d.Code < 0 && crashes[sig] != "":
		cause = crash(d, sig, trace)
	case d.Code < 0 && trace.exception == "" && slices.Contains(d.Sent.Passed, sig):
		cause.Kind, cause.Words = Killed, "was terminated by "+signalName(sig)+", which was sent to the launcher and passed on"
		cause.Advice = "handle the signal in the program, or do not send it to the launcher"
	case d.Code < 0 && trace.exception == "":
		cause.Kind, cause.Words = Killed, "was terminated by "+signalName(sig)+", which the launcher did not send"
	case d.OutOfMemory && trace.exception != "":
		cause.Kind, cause.Words, cause.Advice = memory, "lost a data loader worker, which the kernel killed: out of memory", moreMemory
	case trace.exception != "":
		cause.Kind = kindOf(trace.exception)
		cause.Words = "raised " + firstLine(trace.exception)
		if trace.notRun {
			cause.Words = "could not run its program: " + firstLine(trace.exception)
		}
		cause.Advice = adviceOn(trace)
		if cause.Kind.Consequence() {
			cause.Words = consequence(trace.exception)
		}
		if at := wrongAddress(trace.exception, d.Nodes); at != "" {
			cause.Kind, cause.Advice = Exception, nameAdvice
			cause.Words = "could not reach another rank, which has published the loopback address " + at + ": " + firstLine(trace.exception)
		}
	default:
		cause.Kind, cause.Words = exitCode, "exited with code "+strconv.Itoa(d.Code)
		if kind, line := spoken(d.Stderr); line != "" {
			cause.Kind, cause.Exception = kind, line
			cause.Words += ": " + firstLine(line)
			cause.Advice = adviceFor(line)
		} else {
			cause.Advice = "it printed no error: look for a call to exit with this code, in the program or in a library"
		}
	}
	return cause
}

// signalOf returns the signal that an exit status stands for, a number below 1 if it is none.
func signalOf(code int) int {
	if code > 128 && code < 128+65 { // a shell in between
		return code - 128
	}
	return -code
}

// BySIGKILL reports whether a worker, or a data loader worker that it could not do without, was killed by SIGKILL: the kernel's signal when
// memory is short.
func BySIGKILL(d Death) bool {
	return signalOf(d.Code) == 9 && !d.Sent.stopped() || strings.Contains(loaderKilled.FindString(d.Stderr), "by signal: Killed")
}

const moreMemory = "give the job more memory, or use smaller batches and fewer data loader workers"

// stopped explains the end of a worker that the launcher has sent a signal. Its own last words before that can be the cause of all.
func stopped(d Death, sig int, trace traceback) Cause {
	if sig < 1 { // it has ended by itself after that
		sig = d.Sent.Ending[0]
	}
	by := "stopped by the launcher (" + signalName(sig) + ")"
	raised := Raised(d.Stderr)
	switch kind := kindOf(trace.exception); {
	case raised == "" || interrupted(d):
		return Cause{Kind: Stopped, Words: "was " + by}
	case kind.Consequence():
		return Cause{Kind: Stopped, Words: "was " + by + " after " + firstLine(trace.exception), Where: trace.where}
	default:
		return Cause{
			Kind: kind, Words: "raised " + firstLine(trace.exception) + " and did not exit before it was " + by,
			Exception: trace.exception, Where: trace.where, Traceback: trace.text, Advice: adviceFor(trace.exception),
		}
	}
}

// interrupted reports whether the launcher has sent SIGINT and Python has answered with KeyboardInterrupt. What it has raised from then on,
// while it ended, is not why it ended.
func interrupted(d Death) bool {
	if !slices.Contains(d.Sent.Ending, 2) {
		return false
	}
	blocks := parseBlocks(plainLines(d.Stderr))
	at := slices.IndexFunc(blocks, func(b block) bool { return strings.HasPrefix(b.exception, "KeyboardInterrupt") })
	return at >= 0 && (at == len(blocks)-1 || !blocks[at].chained)
}

// consequence says what another rank has done to a worker, by the text that tells of it.
func consequence(text string) string {
	words := "lost its connection to another rank"
	switch {
	case kindOf(text) == Timeout:
		words = "timed out waiting for another rank"
	case signalled.MatchString(text):
		words = "was told that another rank had timed out"
	}
	return words + ": " + firstLine(text)
}

func sizes(d Death) string {
	switch {
	case d.RSS > 0 && d.Limit > 0:
		return fmt.Sprintf(" (%s resident, limit %s)", bytes(d.RSS), bytes(d.Limit))
	case d.RSS > 0:
		return fmt.Sprintf(" (%s resident)", bytes(d.RSS))
	}
	return ""
}

// bytes returns a size as people write it: "81 GiB".
func bytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if v >= 10 || i == 0 {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// errorFile is what PyTorch's @record writes.
type errorFile struct {
	Message json.RawMessage `json:"message"`
}

type errorMessage struct {
	Message   string `json:"message"`
	ExtraInfo struct {
		Callstack string `json:"py_callstack"`
	} `json:"extraInfo"`
}

// pickTraceback prefers the error file, which holds this worker's exception and nothing else.
func pickTraceback(d Death) traceback {
	var file errorFile
	if len(d.ErrorFile) > 0 && printable.Unmarshal(d.ErrorFile, &file) == nil {
		var m errorMessage
		if printable.Unmarshal(file.Message, &m) == nil && m.Message != "" {
			t := lastTraceback(m.ExtraInfo.Callstack)
			if t.exception == "" || !kindOf(t.exception).Consequence() && firstLine(t.exception) == firstLine(m.Message) {
				t.exception = m.Message
			}
			if t.text == "" {
				t.text = m.ExtraInfo.Callstack
			}
			return t
		}
		var text string
		if printable.Unmarshal(file.Message, &text) == nil && text != "" {
			return traceback{exception: text}
		}
	}
	t := lastTraceback(d.Stderr)
	t.exception = strings.Replace(t.exception, operationFailed, operationFailed+failure(d.Stderr), 1)
	if m := loaderKilled.FindString(d.Stderr); m != "" && strings.Contains(t.exception, "exited unexpectedly") {
		t.exception = "RuntimeError: " + m // the exception before the last says more
	}
	if caught := loaderCaught.FindStringSubmatch(t.exception); caught != nil {
		if original := originalException(d.Stderr); original != "" {
			t.exception = original + " (in a data loader worker, process " + caught[1] + ")"
		}
	}
	return t
}

// originalException finds the exception that PyTorch has carried over from another process.
func originalException(stderr string) string {
	_, rest, found := strings.Cut(stderr, "Original Traceback (most recent call last):")
	if !found {
		return ""
	}
	for line := range strings.Lines(rest) {
		line = rankPrefix.ReplaceAllString(strings.TrimRight(line, "\r\n"), "")
		if line != "" && !strings.HasPrefix(line, " ") {
			return line
		}
	}
	return ""
}

// loaderCaught is an exception that was raised in a data loader worker and again in the rank.
var loaderCaught = regexp.MustCompile(`Caught \S+ in DataLoader worker process (\d+)`)

// loaderKilled is how PyTorch says why a data loader worker has died.
var loaderKilled = regexp.MustCompile(`DataLoader worker \(pid \d+\) is killed by signal: [^\n]*`)

// Failure is a worker that failed, for [First].
type Failure struct {
	Rank  int
	Cause Cause
}

// First returns the index of the failure that explains the others: the first of those with the gravest cause. Failures
// are in the order in which they were seen. It returns -1 when there is none.
func First(failures []Failure) int {
	best := -1
	for i, f := range failures {
		if f.Cause.Kind == Success {
			continue
		}
		if best < 0 || Blame(f.Cause.Kind) < Blame(failures[best].Cause.Kind) {
			best = i
		}
	}
	return best
}

// Blame groups kinds, the smallest first: what happened to a worker by itself comes before what others did to it, and within a group the
// first is the cause.
func Blame(k Kind) int {
	switch k {
	case Timeout:
		return 1
	case LostPeer:
		return 2
	case Stopped:
		return 3
	default:
		return 0
	}
}

// Signals are those that the launcher has sent to a worker, each once.
type Signals struct {
	// Ending were to end it, Passed were sent to the launcher and only passed on.
	Ending, Passed []int
}

// Note notes a signal that is sent. A launcher may pass one on every minute for as long as the job runs.
func (s *Signals) Note(signal int, ending bool) {
	all := &s.Passed
	if ending {
		all = &s.Ending
	}
	if !slices.Contains(*all, signal) {
		*all = append(*all, signal)
	}
}

// stopped reports whether the launcher has sent a signal that was to end the worker.
func (s *Signals) stopped() bool { return len(s.Ending) > 0 }
