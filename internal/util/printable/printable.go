// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package printable makes text of other processes and nodes safe to print. Such a text may hold escape sequences, which move
// the cursor of the terminal that shows it, set its title or its clipboard, and characters that turn the order of letters round.
// [Unmarshal] does it for all texts of a message as it is received, so that what prints them later need not know where they
// come from.
package printable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns s with everything that cannot be printed in a line written as Go writes it in a string: \x1b, \n, \u202e.
func Line(s string) string { return escape(s, false) }

// Lines is [Line] for a text of several lines. Tabs and line ends stay, the latter as "\n".
func Lines(s string) string {
	if strings.Contains(s, "\r\n") {
		s = strings.ReplaceAll(s, "\r\n", "\n")
	}
	return escape(s, true)
}

func escape(s string, lines bool) string {
	var b []byte // s up to done; nil as long as nothing has been escaped
	done := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		at := i
		i += n
		invalid := r == utf8.RuneError && n == 1
		if !invalid && (unicode.IsPrint(r) || lines && (r == '\n' || r == '\t')) {
			continue
		}
		b = append(b, s[done:at]...)
		done = i
		if invalid {
			b = append(b, `\x`...)
			b = append(b, "0123456789abcdef"[s[at]>>4], "0123456789abcdef"[s[at]&15])
			continue
		}
		quoted := strconv.QuoteRune(r)
		b = append(b, quoted[1:len(quoted)-1]...)
	}
	if b == nil {
		return s
	}
	return string(append(b, s[done:]...))
}

// Unmarshal is [json.Unmarshal] for a message of another process: each text in it, under any name and at any depth, is
// given the form of [Lines] first.
func Unmarshal(data []byte, v any) error { return json.Unmarshal(JSON(data), v) }

// JSON returns a document with all its texts in the form of [Lines]. What is not JSON stays as it is.
func JSON(doc []byte) []byte {
	var out []byte
	done := 0
	for i := bytes.IndexByte(doc, '"'); i >= 0 && i < len(doc); {
		end, plain := literal(doc[i:])
		if end += i; !plain {
			var text string
			if json.Unmarshal(doc[i:end], &text) != nil {
				return doc
			}
			if clean := Lines(text); clean != text {
				quoted, _ := json.Marshal(clean) //nolint:errchkjson // a string does not fail
				out = append(append(out, doc[done:i]...), quoted...)
				done = end
			}
		}
		next := bytes.IndexByte(doc[end:], '"')
		if next < 0 {
			break
		}
		i = end + next
	}
	if out == nil {
		return doc
	}
	return append(out, doc[done:]...)
}

// literal returns the length of the string that doc begins with, and whether it has plain letters alone.
func literal(doc []byte) (n int, plain bool) {
	plain = true
	for n = 1; n < len(doc); n++ {
		switch c := doc[n]; {
		case c == '"':
			return n + 1, plain
		case c == '\\':
			plain = false
			n++
		case c < ' ' || c >= 0x7f:
			plain = false
		}
	}
	return len(doc), false
}

// Document returns a JSON document of our own as ASCII where a character cannot be printed, which [json.Marshal] leaves as it is
// from U+007F on. The document means the same.
func Document(doc []byte) []byte {
	var out []byte
	done := 0
	for i := 0; i < len(doc); {
		r, n := utf8.DecodeRune(doc[i:])
		at := i
		i += n
		if r < 0x7f || unicode.IsPrint(r) {
			continue
		}
		out = append(out, doc[done:at]...)
		done = i
		for _, unit := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	if out == nil {
		return doc
	}
	return append(out, doc[done:]...)
}
