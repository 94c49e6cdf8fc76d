// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package jobtoken is the key of a job, and the text in which it is given to the job's nodes: who has the token is of the job.
// Everything that the job needs is derived from the key and from the time at which it expires, so that every launcher, also one
// that takes the place of another, has the same authority and secrets, and a token whose time was changed is another token.
//
// The text is "cohort1." and 64 digits of base 32: the key (32 bytes), the time (4 bytes, seconds since 1970, 0 for never) and a
// checksum (the first 4 bytes of the SHA-256 of what precedes them and of the prefix).
package jobtoken

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// prefix begins the text of every token; the number is that of the format.
const prefix = "cohort1."

const (
	keySize, timeSize, checkSize = 32, 4, 4
	// size is the length of the text.
	size = len(prefix) + (keySize+timeSize+checkSize)*8/5
)

// digits are base 32 in small letters.
var digits = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// errInvalid is what is wrong with every text that is not a token.
var errInvalid = errors.New("it is not a token of cohort")

// Token is the key of a job. The zero value is not one. It prints as its id.
type Token struct {
	key     [keySize]byte
	expires uint32 // seconds since 1970, 0: never
}

// New makes a token with a random key. A zero time says that it does not expire.
func New(expires time.Time) (Token, error) {
	var t Token
	if !expires.IsZero() {
		at := expires.Unix()
		if at <= 0 || at > math.MaxUint32 {
			return t, fmt.Errorf("a token can expire between 1970 and 2106, not at %s", expires.UTC().Format(time.RFC3339))
		}
		t.expires = uint32(at)
	}
	_, _ = rand.Read(t.key[:]) // it does not fail
	return t, nil
}

// Parse reads the text of a token; space around it is ignored. The error does not repeat the text, which may be a secret.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	if err := checkForm(text); err != nil {
		return Token{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	raw, err := digits.DecodeString(text[len(prefix):])
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	body, sum := raw[:keySize+timeSize], raw[keySize+timeSize:]
	if !bytes.Equal(sum, checksum(body)) {
		return Token{}, fmt.Errorf("%w: the checksum does not fit, so at least one character was changed", errInvalid)
	}
	return Token{key: [keySize]byte(body[:keySize]), expires: binary.BigEndian.Uint32(body[keySize:])}, nil
}

// checkForm says what is wrong with the text before it is decoded.
func checkForm(text string) error {
	version, _, found := strings.Cut(text, ".")
	switch {
	case text == "":
		return errors.New("it is empty")
	case strings.HasPrefix(prefix, text):
		return fmt.Errorf("it has %d of %d characters: it was cut off", len(text), size)
	case found && version+"." != prefix && versioned(version):
		return fmt.Errorf("it has the form %s, and this version of cohort reads %s: use one version of cohort on all nodes",
			version, strings.TrimSuffix(prefix, "."))
	case !strings.HasPrefix(text, prefix):
		return fmt.Errorf("it does not begin with %q", prefix)
	}
	for i, c := range []byte(text[len(prefix):]) {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return fmt.Errorf("character %d cannot be part of a token", len(prefix)+i+1)
		}
	}
	switch {
	case len(text) < size:
		return fmt.Errorf("it has %d of %d characters: it was cut off", len(text), size)
	case len(text) > size:
		return fmt.Errorf("it has %d characters, and a token has %d: something was added", len(text), size)
	}
	return nil
}

// versioned reports whether a prefix is that of some version of a token.
func versioned(version string) bool {
	number, ours := strings.CutPrefix(version, "cohort")
	return ours && number != "" && len(number) <= 4 && strings.Trim(number, "0123456789") == ""
}

func checksum(body []byte) []byte {
	sum := sha256.Sum256(append([]byte(prefix), body...))
	return sum[:checkSize]
}

// Text is the token as it is given to other nodes. It is a secret.
func (t Token) Text() string {
	body := t.body()
	return prefix + digits.EncodeToString(append(body, checksum(body)...))
}

func (t Token) body() []byte { return binary.BigEndian.AppendUint32(bytes.Clone(t.key[:]), t.expires) }

// ID names the job. It is not a secret.
func (t Token) ID() string {
	id := t.Derive("id")
	return digits.EncodeToString(id[:10])
}

// Expires returns when the token expires; the zero time if it does not.
func (t Token) Expires() time.Time {
	if t.expires == 0 {
		return time.Time{}
	}
	return time.Unix(int64(t.expires), 0).UTC()
}

// Expired reports whether nothing is accepted for the token any more.
func (t Token) Expired(now time.Time) bool { return t.expires != 0 && !now.Before(t.Expires()) }

// Derive returns a secret for a purpose: HKDF with SHA-256 over the key, with the time as the salt. Secrets of different purposes, or of
// tokens that expire at different times, say nothing about one another.
func (t Token) Derive(purpose string) [32]byte {
	secret, err := hkdf.Key(sha256.New, t.key[:], t.body()[keySize:], "cohort1 "+purpose, 32)
	if err != nil {
		panic("jobtoken: " + err.Error()) // the length is fixed and allowed
	}
	return [32]byte(secret)
}

// String returns what is not secret.
func (t Token) String() string { return "token " + t.ID() }

// GoString is String: %#v must not print the key either.
func (t Token) GoString() string { return t.String() }
