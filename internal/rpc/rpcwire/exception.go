// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
)

// A Python caller that reads the class of an exception and does not have it loses the exception with its text: unpickling
// fails, or PyTorch returns the AttributeError as the value of the call. So only classes that every Python has are written
// as they are. Others are written as an expression that looks for the class and gives RuntimeError if that exception does not exist:
//
//	next(filter(BaseException.__subclasscheck__, filter(inspect.isclass, [located, RuntimeError])))
//
// To look for it imports its module, which can fail with any exception. PyTorch's own function for calls turns that into a value,
// which is not a class, so located is
//
//	_run_function(PythonUDF(pydoc.locate, ("module.Class",), {}))
var (
	next         = py.Global{Module: "builtins", Name: "next"}
	filter       = py.Global{Module: "builtins", Name: "filter"}
	isException  = py.Global{Module: "builtins", Name: "BaseException.__subclasscheck__"}
	isClass      = py.Global{Module: "inspect", Name: "isclass"}
	runFunction  = py.Global{Module: rpcInternal, Name: "_run_function"}
	locate       = py.Global{Module: "pydoc", Name: "locate"}
	runtimeError = py.Global{Module: "builtins", Name: "RuntimeError"}
)

// plainExceptions are the builtin exceptions of every Python 3 that can be made from a text, which is all that PyTorch's
// caller makes them from.
var plainExceptions = names(`ArithmeticError AssertionError AttributeError BaseException BlockingIOError BrokenPipeError BufferError
	BytesWarning ChildProcessError ConnectionAbortedError ConnectionError ConnectionRefusedError ConnectionResetError
	DeprecationWarning EOFError EnvironmentError Exception FileExistsError FileNotFoundError FloatingPointError FutureWarning
	GeneratorExit IOError ImportError ImportWarning IndentationError IndexError InterruptedError IsADirectoryError KeyError
	KeyboardInterrupt LookupError MemoryError ModuleNotFoundError NameError NotADirectoryError NotImplementedError OSError
	OverflowError PendingDeprecationWarning PermissionError ProcessLookupError RecursionError ReferenceError ResourceWarning
	RuntimeError RuntimeWarning StopAsyncIteration StopIteration SyntaxError SyntaxWarning SystemError SystemExit TabError
	TimeoutError TypeError UnboundLocalError UnicodeError UnicodeWarning UserWarning ValueError Warning ZeroDivisionError`)

// otherExceptions are the builtin exceptions that cannot be made from a text.
var otherExceptions = names("BaseExceptionGroup ExceptionGroup UnicodeDecodeError UnicodeEncodeError UnicodeTranslateError")

func names(list string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(list) {
		set[name] = true
	}
	return set
}

// exceptionClass is how the class of an exception is written.
func exceptionClass(class py.Global) any {
	builtin := isBuiltins(class.Module)
	switch {
	case builtin && plainExceptions[class.Name]:
		return class
	case builtin && otherExceptions[class.Name]:
		return runtimeError
	}
	found := pickle.Call(runFunction, pickle.Call(pythonUDF, locate, pickle.NewTuple(class.Module+"."+class.Name), &pickle.Dict{}))
	return pickle.Call(next, pickle.Call(filter, isException, pickle.Call(filter, isClass, pickle.NewList(found, runtimeError))))
}

// parseExceptionClass reads what exceptionClass or a PyTorch worker has written.
func parseExceptionClass(v any) (py.Global, bool) {
	if class, ok := callee(v); ok {
		return class, true
	}
	for _, fn := range []py.Global{next, filter, filter} {
		v = lastArgument(v, fn)
	}
	list, _ := v.(*pickle.List)
	if list == nil || len(list.Items) == 0 {
		return py.Global{}, false
	}
	udf, _ := lastArgument(list.Items[0], runFunction).(*pickle.Object)
	if udf == nil || udf.Class != any(pythonUDF) || len(udf.Args.Items) != 3 {
		return py.Global{}, false
	}
	args, _ := udf.Args.Items[1].(*pickle.Tuple)
	if args == nil || len(args.Items) != 1 {
		return py.Global{}, false
	}
	path, ok := args.Items[0].(string)
	return py.Func(path), ok
}

// lastArgument returns the last argument of a call of fn, or nil if v is something else.
func lastArgument(v any, fn py.Global) any {
	call, _ := v.(*pickle.Object)
	if call == nil || call.How != pickle.Reduce || !pickle.IsGlobal(call.Class, fn.Module, fn.Name) || len(call.Args.Items) == 0 {
		return nil
	}
	return call.Args.Items[len(call.Args.Items)-1]
}

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
	text := fmt.Sprintf("On WorkerInfo(id=%d, name=%s):\n%s(%s)\n%s\n", id, worker, class.Name, py.ReprString(e.Message),
		e.traceback(worker, class))
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
	return strings.Contains(last, "/torch/distributed/rpc/") &&
		(strings.Contains(last, ", in _run_function") || strings.Contains(last, ", in _local_invoke"))
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
