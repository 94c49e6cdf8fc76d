// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

// This file has how errors travel between RPC workers: as exceptions with the text that Python callers are used to
// and, among Go workers, as exceptions that carry a code. It writes and reads these texts; package rpc turns them into Go
// errors.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc/py"
)

// PythonError is what is known of an exception.
type PythonError struct {
	Kind    string // its class: "ValueError", or "module.Class" outside Python's builtins
	Message string
	Worker  string // where it happened, if not at the callee
	Stack   string
	Code    cohort.Code
	Hint    string // what PyTorch adds to the message for its callers
}

// goErrors is the module of the exception class that stands for the error of a Go handler on the way to a Go caller; the
// code's number follows.
const goErrors = "cohort.error."

// pythonErrorClass returns the class that a kind names.
func pythonErrorClass(kind string) py.Global {
	if !strings.ContainsAny(kind, ".:") {
		return py.Global{Module: "builtins", Name: kind}
	}
	return py.Func(kind)
}

// Torch is what a callee answers to a PyTorch caller: PyTorch's own text, so that it sees what it is used to.
func (e PythonError) Torch(id int, worker string) *RemoteException {
	e.Message += e.Hint
	class := pythonErrorClass(e.Kind)
	text := fmt.Sprintf("On WorkerInfo(id=%d, name=%s):\n%s(%s)\n%s\n", id, worker, class.Name, py.ReprString(e.Message), e.traceback(worker, class))
	return &RemoteException{Msg: unicodeEscape(text), Class: class}
}

const tracebackHead = "Traceback (most recent call last):"

// traceback is what Python would print below an exception.
func (e PythonError) traceback(teller string, class py.Global) string {
	stack := strings.TrimRight(e.Stack, "\n")
	if strings.HasPrefix(stack, tracebackHead) { // of a Python function that the handler called
		return stack
	}
	if stack == "" {
		worker := teller
		if e.Worker != "" {
			worker = e.Worker
		}
		stack = "  In a handler of the Go worker " + strconv.Quote(worker)
	}
	name, said := class.String(), e.Message
	if class.Module == "builtins" {
		name = class.Name
	}
	if name == "KeyError" { // the one class whose text is the repr of its argument
		said = py.ReprString(said)
	}
	if said != "" {
		name += ": " + said
	}
	return tracebackHead + "\n" + stack + "\n" + name
}

// Go is what a callee answers to a Go caller: the class has the code, the text the rest.
func (e PythonError) Go(worker string) *RemoteException {
	if e.Worker != "" {
		worker = e.Worker
	}
	return &RemoteException{
		Class: py.Global{Module: goErrors + strconv.Itoa(int(e.Code)), Name: e.Kind},
		Msg:   worker + "\x00" + e.Message + "\x00" + e.Stack,
	}
}

// ErrorLine is an answer of Go inside an EXCEPTION, which has a text only.
func ErrorLine(x *RemoteException) string {
	return x.Class.Module + "\x00" + x.Class.Name + "\x00" + x.Msg
}

// restore is the inverse of Go; it reports false for an exception of a PyTorch worker.
func restore(worker string, x *RemoteException) (e PythonError, ok bool) {
	number, ok := strings.CutPrefix(x.Class.Module, goErrors)
	if !ok {
		return e, false
	}
	code, _ := strconv.ParseUint(number, 10, 8)
	e = PythonError{Kind: x.Class.Name, Worker: worker, Code: cohort.Code(code), Message: x.Msg}
	if parts := strings.SplitN(x.Msg, "\x00", 3); len(parts) == 3 {
		e.Worker, e.Message, e.Stack = parts[0], parts[1], parts[2]
	}
	return e, true
}

// RaisedError reads what a callee has answered.
func RaisedError(worker string, x *RemoteException) PythonError {
	if e, ok := restore(worker, x); ok {
		return e
	}
	e := PythonError{Kind: x.Class.Name, Worker: worker, Code: cohort.Remote}
	if x.Class.Module != "builtins" && x.Class.Module != "exceptions" {
		e.Kind = x.Class.Module + "." + x.Class.Name
	}
	text := x.Msg // as it is from PyTorch, whose callers unescape it anyway
	if !strings.Contains(text, "\n") {
		text = unicodeUnescape(text) // of a Go worker on PyTorch's transport
	}
	e.Message = text
	if head, rest, ok := strings.Cut(text, "\n"); ok && strings.HasPrefix(head, "On WorkerInfo(") {
		e.Message = strings.TrimRight(rest, "\n")
		if at := strings.Index(rest, tracebackHead); at >= 0 {
			e.Message, e.Stack = strings.TrimRight(rest[:at], "\n"), rest[at:]
		}
	}
	if said, ok := lastLine(e.Stack, x.Class.Name); ok {
		e.Message = said
	}
	switch { // an exception from inside the function is the function's own business
	case x.Class.Name == "AttributeError" && NotDecoded(text):
		e.Code = cohort.NotFound
		e.Message, _, _ = strings.Cut(e.Message, " Default RPC pickler") // the rest is about pickles, and in the stack
	case !raisedByCall(e.Stack):
	case x.Class.Name == "AttributeError" && strings.Contains(text, "has no attribute"):
		e.Code = cohort.NotFound
	case x.Class.Name == "TypeError":
		e.Code = cohort.InvalidArgument
	}
	return e
}

// raisedByCall reports whether calling the function failed, not the function: the last frame is PyTorch's.
func raisedByCall(stack string) bool {
	const frame = "\n  File \""
	at := strings.LastIndex(stack, frame)
	if at < 0 {
		return true // of a Go worker on PyTorch's transport
	}
	last, _, _ := strings.Cut(stack[at+len(frame):], "\n")
	return strings.Contains(last, "/torch/distributed/rpc/") && (strings.Contains(last, ", in _run_function") || strings.Contains(last, ", in _local_invoke"))
}

// NotDecoded recognises the answer to a call of a function that does not exist: it comes before the arguments, so they
// were not decoded.
func NotDecoded(text string) bool { return strings.Contains(text, "RPC pickler does not serialize") }

// lastLine finds what a traceback says at its end: "KeyError: 'a'".
func lastLine(stack, class string) (string, bool) {
	lines := strings.Split(strings.TrimRight(stack, "\n"), "\n")
	for i, line := range slices.Backward(lines) {
		name, said, _ := strings.Cut(line, ": ") // an exception without a text is its name alone
		if name == class || strings.HasSuffix(name, "."+class) {
			return strings.Join(append([]string{said}, lines[i+1:]...), "\n"), true
		}
	}
	return "", false
}

// ErrorFromLine reads the text of an EXCEPTION, of a Go worker or of PyTorch.
func ErrorFromLine(worker, text string) PythonError {
	if parts := strings.SplitN(text, "\x00", 3); len(parts) == 3 {
		if e, ok := restore(worker, &RemoteException{Class: py.Global{Module: parts[0], Name: parts[1]}, Msg: parts[2]}); ok {
			return e
		}
	}
	return nodeError(worker, text)
}

// nodeError reads PyTorch's text of an error outside the user's function. The text ends in a stack: pybind11's, behind a
// Python exception, or that of C++.
func nodeError(worker, text string) PythonError {
	e := PythonError{Kind: "RuntimeError", Message: text, Worker: worker, Code: cohort.Remote}
	if rest, ok := strings.CutPrefix(text, "Error on Node "); ok {
		if _, rest, ok = strings.Cut(rest, ": "); ok {
			e.Message = rest
		}
	}
	if said, stack, ok := strings.Cut(e.Message, "\n\nAt:\n"); ok {
		if kind, message, ok := strings.Cut(said, ": "); ok && isClassName(kind) {
			e.Kind, e.Message, e.Stack = kind, message, stack
		}
	} else if said, stack, ok := strings.Cut(e.Message, "\nException raised from "); ok {
		e.Message, e.Stack = said, "Exception raised from "+stack
	}
	switch {
	case e.Kind == "ModuleNotFoundError", strings.HasPrefix(e.Message, "Cannot find matching operator"),
		strings.HasPrefix(e.Message, "attempted to get undefined function"):
		e.Code = cohort.NotFound
	case strings.HasPrefix(e.Message, "expected ") && strings.Contains(e.Message, " inputs, but got "):
		e.Code = cohort.InvalidArgument
	}
	return e
}

// isClassName reports whether s can be the name of a Python class: words with dots between them.
func isClassName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c != '.' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}

// unicodeEscape makes a text that survives Python's decode("unicode_escape"): the caller's side applies it.
func unicodeEscape(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '\\':
			b.WriteString(`\\`)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c >= 0x20 && c < 0x7f:
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	return b.String()
}

// unicodeUnescape is the inverse. What is not an escape stays as it is.
func unicodeUnescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		if digits > 0 && i+digits < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32); err == nil {
				b.WriteRune(rune(n)) //nolint:gosec // at most 32 bits
				i += digits
				continue
			}
		}
		switch s[i] {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case '\\', '\'', '"':
			b.WriteByte(s[i])
		default:
			b.WriteByte('\\')
			b.WriteByte(s[i])
		}
	}
	return b.String()
}
