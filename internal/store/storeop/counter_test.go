// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storeop

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
)

func TestParseCounter(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
		err  error
	}{
		{"0", 0, nil},
		{"  12abc", 12, nil},
		{"\t\n\v\f\r +7 8", 7, nil},
		{"-5", -5, nil},
		{"007", 7, nil},
		{"0x10", 0, nil},
		{"3.9", 3, nil},
		{"9223372036854775807", math.MaxInt64, nil},
		{"-9223372036854775808", math.MinInt64, nil},
		{"9223372036854775808", 0, errRange},
		{"-9223372036854775809", 0, errRange},
		{"99999999999999999999999", 0, errRange},
		{"18446744073709551616", 0, errRange},
		{"", 0, errSyntax},
		{"   ", 0, errSyntax},
		{"-", 0, errSyntax},
		{"+-1", 0, errSyntax},
		{"- 1", 0, errSyntax},
		{"abc", 0, errSyntax},
		{"\x001", 0, errSyntax},
		{"1\x002", 1, nil},
	} {
		got, err := ParseCounter([]byte(c.text))
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("Parse(%q) = %d, %v; want %d, %v", c.text, got, err, c.want, c.err)
		}
		if err != nil && !errors.Is(err, cohort.NotANumber) {
			t.Errorf("Parse(%q): %v is not cohort.NotANumber", c.text, err)
		}
	}
}

func TestAddCounter(t *testing.T) {
	if n, err := AddCounter([]byte("9223372036854775807"), 1); n != math.MinInt64 || err != nil {
		t.Errorf("the sum does not wrap: %d, %v", n, err)
	}
	if _, err := AddCounter(nil, 1); !errors.Is(err, errSyntax) {
		t.Errorf("an empty value: %v", err)
	}
	if n, err := AddCounterEmptyIsZero(nil, 4); n != 4 || err != nil {
		t.Errorf("an empty value as zero: %d, %v", n, err)
	}
}

func TestErrorText(t *testing.T) {
	_, err := ParseCounter([]byte("nope"))
	got := CounterError("store: add", "k", []byte("nope"+strings.Repeat("x", 100)), err).Error()
	want := `store: add "k": not a number: the value does not begin with a decimal number: "nopexxxxxxxxxxxxxxxxxxxxxxxxxxxx"...`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A number that strconv reads is read alike, with anything that is not a digit behind it.
func TestParseAgreesWithStrconv(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[-+]?[0-9]{1,22}`).Draw(t, "text")
		tail := rapid.StringMatching(`([^0-9].*)?`).Draw(t, "tail")
		want, wantErr := strconv.ParseInt(text, 10, 64)
		got, err := ParseCounter([]byte(text + tail))
		if (err != nil) != (wantErr != nil) || err == nil && got != want {
			t.Fatalf("Parse(%q) = %d, %v; strconv %d, %v", text+tail, got, err, want, wantErr)
		}
	})
}
