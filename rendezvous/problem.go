// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"strconv"

	"github.com/cohort-dist/cohort"
)

// problem is why a plan cannot be made: PyTorch's words first, then what to do.
type problem struct {
	code   cohort.Code
	what   string
	advice string
}

func invalid(what, advice string) *problem {
	return &problem{code: cohort.InvalidArgument, what: what, advice: advice}
}

// initFailure has the text of PyTorch's ValueError for a URL or environment that a built-in scheme cannot use.
func initFailure(scheme, what, advice string) *problem {
	return invalid("Error initializing torch.distributed using "+scheme+":// rendezvous: "+what, advice)
}

func (p *problem) text() string {
	if p.advice == "" {
		return p.what
	}
	return p.what + "; " + p.advice
}

// asError makes the public error about url.
func (p *problem) asError(url string) *cohort.Error {
	if len(url) > 256 {
		url = url[:256] + "..."
	}
	return &cohort.Error{Op: opJoin, Code: p.code, Rank: cohort.NoRank, Key: url, Detail: p.text()}
}

// number reads a decimal as Python's int does, within what a rank or size can be.
func number(name, text string) (int, *problem) {
	n, err := strconv.ParseInt(trimSpace(text), 10, 32)
	if err != nil {
		return 0, invalid(name+": invalid literal for int() with base 10: '"+text+"'", name+" must be a decimal number")
	}
	return int(n), nil
}

// trimSpace cuts the ASCII white space that Python's int ignores.
func trimSpace(s string) string {
	start, end := 0, len(s)
	for start < end && isSpace(s[start]) {
		start++
	}
	for end > start && isSpace(s[end-1]) {
		end--
	}
	return s[start:end]
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }
