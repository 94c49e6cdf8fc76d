// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc/py"
)

// TestTextOfPythonException keeps what an exception said, as PyTorch's callee writes it: unescaped, and nothing at all for an
// exception without a text.
func TestTextOfPythonException(t *testing.T) {
	for _, said := range []string{"", "plain", `C:\new\table \x41`, "two\nlines", "ValueError: again"} {
		last := "ValueError"
		if said != "" {
			last += ": " + said
		}
		text := "On WorkerInfo(id=0, name=py0):\nValueError('...')\nTraceback (most recent call last):\n" +
			"  File \"a.py\", line 1, in f\n    raise ValueError(x)\n" + last + "\n"
		e := RaisedError("py0", &RemoteException{Msg: text, Class: py.Global{Module: "builtins", Name: "ValueError"}})
		if e.Kind != "ValueError" || e.Message != said {
			t.Errorf("%q became %s, %q", said, e.Kind, e.Message)
		}
	}
}

// An exception without a text is written as Python writes one.
func TestExceptionWithoutText(t *testing.T) {
	x := PythonError{Kind: "ValueError"}.Torch(1, "w1")
	if text := unicodeUnescape(x.Msg); !strings.HasSuffix(text, "\nValueError\n") || !strings.Contains(text, "\nValueError('')\n") {
		t.Errorf("%q", text)
	}
}

// Among Go workers nothing of an error is lost, as the answer to a call and inside an EXCEPTION.
func TestBetweenGoWorkers(t *testing.T) {
	e := PythonError{Kind: "my.Error", Message: "two\nlines, and ü", Worker: "there", Stack: "f()\ng()", Code: cohort.NotFound}
	for what, got := range map[string]PythonError{
		"answer":    RaisedError("w", e.Go("w")),
		"EXCEPTION": ErrorFromLine("w", ErrorLine(e.Go("w"))),
	} {
		if got != e {
			t.Errorf("%s: %+v", what, got)
		}
	}
	e.Worker = ""
	if got := RaisedError("w", e.Go("teller")); got.Worker != "teller" {
		t.Errorf("it happened at %q", got.Worker)
	}
}
