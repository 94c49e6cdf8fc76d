// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import "strings"

// substitute is Python's string.Template(text).safe_substitute(values): $name and ${name} are replaced where the name is
// known, $$ becomes $, everything else stays.
func substitute(text string, values map[string]string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		if text[i] != '$' {
			b.WriteByte(text[i])
			i++
			continue
		}
		rest := text[i+1:]
		if strings.HasPrefix(rest, "$") {
			b.WriteByte('$')
			i += 2
			continue
		}
		brace := strings.HasPrefix(rest, "{")
		if brace {
			rest = rest[1:]
		}
		n := nameLength(rest)
		size := 1 + n
		if brace {
			size += 2
		}
		value, known := values[rest[:n]]
		if n == 0 || !known || brace && !strings.HasPrefix(rest[n:], "}") {
			b.WriteByte('$')
			i++
			continue
		}
		b.WriteString(value)
		i += size
	}
	return b.String()
}

// nameLength returns the length of the identifier that text begins with.
func nameLength(text string) int {
	for i := range len(text) {
		c := text[i]
		letter := c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return i
		}
	}
	return len(text)
}
