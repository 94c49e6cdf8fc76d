// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"strconv"
	"strings"
)

// maxURL bounds an init URL; anything longer is a mistake, not an address.
const maxURL = 8 << 10

// URL is an init URL, split as Python's urlparse splits it, which is what PyTorch uses. net/url differs where it
// matters: it decodes percent escapes, refuses host names that Python takes and keeps every value of a repeated key.
type URL struct {
	// Scheme is lower case, without "://".
	Scheme string
	// Host is lower case and without the brackets of an IPv6 address. PyTorch's file:// ignores it.
	Host string
	// Port is 0 when the URL names none.
	Port int
	// Path starts with "/" where there is one.
	Path string
	// Query holds the items as written: no percent decoding, the last of a repeated key wins, "a=b=c" means b.
	Query map[string]string

	text     string
	zeroPort bool // port 0 was written, not left out
}

// String returns the URL as the user wrote it.
func (u URL) String() string { return u.text }

// parseURL splits text. Its error is a reason in plain words without operation or URL.
func parseURL(text string) (URL, *problem) {
	u := URL{text: text, Query: map[string]string{}}
	if len(text) > maxURL {
		u.text = text[:64] + "..."
		return u, invalid("the url has "+strconv.Itoa(len(text))+" bytes", "the limit is "+strconv.Itoa(maxURL))
	}
	// Python drops these silently, so a URL that was cut from a file with its line end works.
	rest := strings.TrimLeftFunc(text, func(r rune) bool { return r <= ' ' })
	rest = strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(rest)

	if scheme, after, found := strings.Cut(rest, ":"); found && isScheme(scheme) {
		u.Scheme, rest = strings.ToLower(scheme), after
	}
	if u.Scheme == "" {
		return u, invalid("No rendezvous handler for ://",
			"the url has no scheme; write env://, tcp://HOST:PORT?rank=R&world_size=N or file:///PATH?rank=R&world_size=N")
	}
	netloc := ""
	if after, found := strings.CutPrefix(rest, "//"); found {
		end := strings.IndexAny(after, "/?#")
		if end < 0 {
			end = len(after)
		}
		netloc, rest = after[:end], after[end:]
	}
	rest, _, _ = strings.Cut(rest, "#")
	path, query, _ := strings.Cut(rest, "?")
	u.Path = path
	if p := parseAuthority(&u, netloc); p != nil {
		return u, p
	}
	for item := range strings.SplitSeq(query, "&") {
		if item == "" {
			continue
		}
		key, value, found := strings.Cut(item, "=")
		if !found {
			return u, invalid("query item "+strconv.Quote(item)+` has no "="`, "write it as "+key+"=VALUE")
		}
		value, _, _ = strings.Cut(value, "=")
		u.Query[key] = value
	}
	return u, nil
}

func isScheme(s string) bool {
	for i, c := range []byte(s) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '+' && c != '-' && c != '.') {
			return false
		}
	}
	return s != ""
}

// parseAuthority reads [user@]host[:port].
func parseAuthority(u *URL, netloc string) *problem {
	if at := strings.LastIndexByte(netloc, '@'); at >= 0 {
		netloc = netloc[at+1:]
	}
	var host, port string
	if strings.ContainsAny(netloc, "[]") {
		inner, after, closed := strings.Cut(strings.TrimPrefix(netloc, "["), "]")
		if !strings.HasPrefix(netloc, "[") || !closed || (after != "" && after[0] != ':') {
			return invalid("Invalid IPv6 URL", "write an IPv6 host in brackets, such as tcp://[::1]:29500")
		}
		host, port = inner, strings.TrimPrefix(after, ":")
	} else {
		host, port, _ = strings.Cut(netloc, ":")
	}
	u.Host = strings.ToLower(host)
	if port == "" {
		return nil
	}
	for _, c := range []byte(port) {
		if c < '0' || c > '9' {
			return invalid("Port could not be cast to integer value as '"+port+"'",
				"the port is a number from 1 to 65535; an IPv6 host needs brackets, such as tcp://[::1]:29500")
		}
	}
	n, err := strconv.Atoi(port)
	if err != nil || n > 65535 {
		return invalid("Port out of range 0-65535", "the url has port "+port)
	}
	u.Port, u.zeroPort = n, n == 0
	return nil
}
