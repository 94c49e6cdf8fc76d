// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobtoken

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

var tomorrow = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func newToken(t *testing.T, expires time.Time) Token {
	t.Helper()
	token, err := New(expires)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestRoundTrip: a token survives its text, with space around it, and two tokens are different.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, expires := range []time.Time{{}, tomorrow} {
		token := newToken(t, expires)
		text := token.Text()
		if len(text) != size || size != 72 {
			t.Errorf("%d characters", len(text))
		}
		again, err := Parse(" " + text + "\r\n")
		if err != nil || again != token || !again.Expires().Equal(expires) || again.ID() != token.ID() {
			t.Errorf("%v, %v, expires %v", again, err, again.Expires())
		}
		if newToken(t, expires) == token {
			t.Error("two tokens are the same")
		}
	}
	for _, when := range []time.Time{time.Unix(-1, 0), time.Unix(0, 0), time.Unix(1<<32, 0)} {
		if _, err := New(when); err == nil {
			t.Errorf("a token that expires at %v", when)
		}
	}
}

// TestParseErrors: the error says what is wrong and does not repeat the text.
func TestParseErrors(t *testing.T) {
	t.Parallel()
	text := newToken(t, tomorrow).Text()
	flipped := []byte(text)
	flipped[40] = 'a' + (flipped[40]-'a'+1)%26
	for give, want := range map[string]string{
		"":                          "it is empty",
		" \n":                       "it is empty",
		"coho":                      "it has 4 of 72 characters: it was cut off",
		text[:40]:                   "it has 40 of 72 characters: it was cut off",
		text[:71]:                   "it has 71 of 72 characters: it was cut off",
		text + "a":                  "it has 73 characters, and a token has 72",
		text + "\n" + text:          "character 73 cannot be part of a token",
		string(flipped):             "the checksum does not fit",
		"cohort2." + text[8:]:       "it has the form cohort2, and this version of cohort reads cohort1",
		"cohort2.short":             "it has the form cohort2",
		"hunter2":                   `it does not begin with "cohort1."`,
		"cohort.":                   `it does not begin with "cohort1."`,
		strings.ToUpper(text):       `it does not begin with "cohort1."`,
		text[:30] + "1" + text[31:]: "character 31 cannot be part of a token",
	} {
		_, err := Parse(give)
		if !errors.Is(err, errInvalid) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v, want %s", give, err, want)
		}
		if len(give) > 20 && strings.Contains(fmt.Sprint(err), give[9:20]) {
			t.Errorf("%v repeats the text", err)
		}
	}
}

// TestEveryChangeIsSeen: no single character of a token can be replaced by another.
func TestEveryChangeIsSeen(t *testing.T) {
	t.Parallel()
	text := newToken(t, tomorrow).Text()
	for i := range text {
		for _, c := range "abcdefghijklmnopqrstuvwxyz234567.1" {
			changed := text[:i] + string(c) + text[i+1:]
			if _, err := Parse(changed); changed != text && err == nil {
				t.Fatalf("character %d can be replaced", i+1)
			}
		}
	}
}

// TestExpires: a token is accepted before its time only, and its time cannot be changed without changing everything that is derived.
func TestExpires(t *testing.T) {
	t.Parallel()
	token := newToken(t, tomorrow)
	if token.Expired(tomorrow.Add(-time.Second)) || !token.Expired(tomorrow) || newToken(t, time.Time{}).Expired(tomorrow) {
		t.Error("it expires at another time")
	}
	later := token
	later.expires++
	if later.ID() == token.ID() || later.Derive("join") == token.Derive("join") {
		t.Error("a token with another time has the same secrets")
	}
	if again := token; token.Derive("join") == token.Derive("store") || token.Derive("join") != again.Derive("join") {
		t.Error("secrets of two purposes are the same, or those of one are not")
	}
}

// TestDerivation: what is derived does not change from one version of cohort to the next; nodes of a job agree on it.
// The values were computed with another implementation of HKDF too.
func TestDerivation(t *testing.T) {
	t.Parallel()
	var token Token
	for i := range token.key {
		token.key[i] = byte(i)
	}
	token.expires = 0x65800000
	const text = "cohort1.aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypwlaaaacvl6ae2"
	if token.Text() != text || token.ID() != "onijrnhebpk5ewmb" {
		t.Errorf("%s, id %s", token.Text(), token.ID())
	}
}

// TestNotPrinted: no way of printing a token shows its key.
func TestNotPrinted(t *testing.T) {
	t.Parallel()
	token := newToken(t, tomorrow)
	for _, text := range []string{
		token.String(), fmt.Sprintf("%v %+v %#v %s %q", token, token, token, token, token),
		fmt.Sprintf("%v %+v", &token, struct{ T Token }{token}),
	} {
		for _, secret := range []string{token.Text()[8:20], hex.EncodeToString(token.key[:4]), fmt.Sprintf("%d", token.key[:4])} {
			if strings.Contains(text, strings.Trim(secret, "[]")) {
				t.Errorf("%s shows the key", text)
			}
		}
	}
}

// FuzzParse: what is accepted is the text of the token that it yields.
func FuzzParse(f *testing.F) {
	token, err := New(tomorrow)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{token.Text(), "cohort1.", "cohort2.a", "", token.Text()[:50], "\ncohort1. "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if token, err := Parse(text); err == nil && token.Text() != strings.TrimSpace(text) {
			t.Errorf("%q is accepted as %q", text, token.Text())
		}
	})
}
