// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"
)

const job = "onijrnhebpk5ewmb"

var now = time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newRoot(seed byte, expires time.Time) *Authority {
	return must(NewRoot([32]byte{seed}, job, expires))
}

// launcher is the authority of a node.
func launcher(root *Authority, node int, at time.Time) *Authority {
	key := must(NewKey())
	return must(NewNode(must(root.Issue(Name{Job: job, Role: Node, Node: node}, key.Public(), at)), key))
}

func parse(der []byte) *x509.Certificate { return must(x509.ParseCertificate(der)) }

func leaf(a *Authority, n Name, at time.Time) *x509.Certificate {
	return parse(must(a.Issue(n, must(NewKey()).Public(), at)))
}

// forge makes a certificate of any content, as an issuer can that keeps to no rule.
func forge(a *Authority, template x509.Certificate, uris ...string) *x509.Certificate {
	return forgeAuthority(a, template, uris...).cert
}

func forgeAuthority(a *Authority, template x509.Certificate, uris ...string) *Authority {
	for _, u := range uris {
		template.URIs = append(template.URIs, must(url.Parse(u)))
	}
	template.SerialNumber = big.NewInt(7)
	template.NotBefore, template.NotAfter = now.Add(-time.Minute), now.Add(time.Hour)
	key := must(NewKey())
	return &Authority{cert: parse(must(x509.CreateCertificate(rand.Reader, &template, a.cert, key.Public(), a.key))), key: key}
}

// TestNames: each name has one form, and everything else is refused.
func TestNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Name{
		"cohort://j/host":            {Job: "j", Role: Host},
		"cohort://j/node/0":          {Job: "j", Role: Node},
		"cohort://j/node/3/rank/17":  {Job: "j", Role: Rank, Node: 3, Rank: 17},
		"cohort://j/node/3/tool/rpc": {Job: "j", Role: Tool, Node: 3, Tool: "rpc"},
	} {
		if n, err := ParseName(text); err != nil || n != want || n.String() != text {
			t.Errorf("%s: %+v (%s), %v", text, n, n, err)
		}
	}
	for _, text := range []string{
		"", "cohort://", "cohort://j", "cohort://j/", "cohort:///host", "cohort://j/host/", "cohort://j/host/0", "https://j/host",
		"cohort://j/node", "cohort://j/node/", "cohort://j/node/-1", "cohort://j/node/01", "cohort://j/node/+1",
		"cohort://j/node/2147483648",
		"cohort://j/node/1/", "cohort://j/node/1/rank", "cohort://j/node/1/rank/", "cohort://j/node/1/rank/x", "cohort://j/node/1/rank/1/1",
		"cohort://j/node/1/tool/", "cohort://j/node/1/tool/A", "cohort://j/node/1/host/1", "cohort://j/rank/1", "cohort://J/host",
		"cohort://" + strings.Repeat("j", 65) + "/host", "cohort://a@j/host", "cohort://j/node/1?rank=2",
	} {
		if n, err := ParseName(text); err == nil {
			t.Errorf("%q is accepted as %+v", text, n)
		}
	}
}

// TestSameAuthority: launchers that know the seed have the same authority, so that one can take the place of another; with another seed
// it is another.
func TestSameAuthority(t *testing.T) {
	t.Parallel()
	before, after := newRoot(1, time.Time{}), newRoot(1, time.Time{})
	node := leaf(before, Name{Job: job, Role: Node, Node: 2}, now)
	if n, err := Verify(after.Certificate(), []*x509.Certificate{node}, now); err != nil || n.Node != 2 {
		t.Errorf("%+v, %v", n, err)
	}
	if _, err := Verify(newRoot(2, time.Time{}).Certificate(), []*x509.Certificate{node}, now); !errors.Is(err, ErrForeign) {
		t.Errorf("another authority accepts it: %v", err)
	}
	if _, err := NewRoot([32]byte{}, "Job/1", time.Time{}); err == nil {
		t.Error("a name that is not one is accepted")
	}
}

// TestIssue: the job issues hosts and nodes, a launcher its own ranks and tools, and no certificate is issued otherwise.
func TestIssue(t *testing.T) {
	t.Parallel()
	root := newRoot(1, time.Time{})
	first := launcher(root, 1, now)
	for _, c := range []struct {
		by   *Authority
		name Name
		ok   bool
	}{
		{root, Name{Job: job, Role: Host}, true},
		{root, Name{Job: job, Role: Node, Node: 4}, true},
		{root, Name{Job: job, Role: Rank, Rank: 1}, false},
		{root, Name{Job: job, Role: Tool, Tool: "rpc"}, false},
		{root, Name{Job: "other", Role: Host}, false},
		{root, Name{Job: job, Role: Host, Node: 1}, false},
		{root, Name{Job: job}, false},
		{first, Name{Job: job, Role: Rank, Node: 1, Rank: 8}, true},
		{first, Name{Job: job, Role: Tool, Node: 1, Tool: "rpc"}, true},
		{first, Name{Job: job, Role: Rank, Node: 2, Rank: 8}, false},
		{first, Name{Job: job, Role: Tool, Node: 2, Tool: "rpc"}, false},
		{first, Name{Job: job, Role: Node, Node: 1}, false},
		{first, Name{Job: job, Role: Host}, false},
		{first, Name{Job: "other", Role: Rank, Node: 1}, false},
		{first, Name{Job: job, Role: Rank, Node: 1, Rank: -1}, false},
		{first, Name{Job: job, Role: Tool, Node: 1, Tool: "../x"}, false},
	} {
		_, err := c.by.Issue(c.name, must(NewKey()).Public(), now)
		if (err == nil) != c.ok {
			t.Errorf("%s issues %+v: %v", c.by.name, c.name, err)
		}
	}
}

// TestVerify: only a certificate that was issued as it should be is believed, signed by any issuer.
func TestVerify(t *testing.T) {
	t.Parallel()
	root, foreign := newRoot(1, time.Time{}), newRoot(9, time.Time{})
	first, second := launcher(root, 1, now), launcher(root, 2, now)
	rank := leaf(first, Name{Job: job, Role: Rank, Node: 1, Rank: 5}, now)
	tool := leaf(first, Name{Job: job, Role: Tool, Node: 1, Tool: "rpc"}, now)
	other := must(NewRoot([32]byte{1}, "other", time.Time{}))
	both := forge(root, x509.Certificate{}, "cohort://"+job+"/host", "cohort://"+job+"/node/1")
	named := forge(root, x509.Certificate{DNSNames: []string{"a"}}, "cohort://"+job+"/host")
	signs := x509.Certificate{BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	signing := forgeAuthority(root, signs, "cohort://"+job+"/host")
	below := forgeAuthority(first, signs, "cohort://"+job+"/node/1/rank/5") // a launcher has made its rank an authority
	for name, c := range map[string]struct {
		chain []*x509.Certificate
		want  error
	}{
		"host":                   {[]*x509.Certificate{leaf(root, Name{Job: job, Role: Host}, now)}, nil},
		"node":                   {[]*x509.Certificate{first.cert}, nil},
		"rank":                   {[]*x509.Certificate{rank, first.cert}, nil},
		"rank, and the root":     {[]*x509.Certificate{rank, first.cert, root.cert}, nil},
		"tool":                   {[]*x509.Certificate{tool, first.cert}, nil},
		"nothing":                {nil, ErrForeign},
		"too many":               {[]*x509.Certificate{rank, first.cert, root.cert, root.cert}, ErrForeign},
		"rank without issuer":    {[]*x509.Certificate{rank}, ErrForeign},
		"rank, another issuer":   {[]*x509.Certificate{rank, second.cert}, ErrForeign},
		"foreign host":           {[]*x509.Certificate{leaf(foreign, Name{Job: job, Role: Host}, now)}, ErrForeign},
		"foreign node":           {[]*x509.Certificate{launcher(foreign, 1, now).cert}, ErrForeign},
		"foreign root shown too": {[]*x509.Certificate{leaf(foreign, Name{Job: job, Role: Host}, now), foreign.cert}, ErrForeign},
		"another job":            {[]*x509.Certificate{leaf(other, Name{Job: "other", Role: Host}, now)}, ErrForeign},
		"the authority itself":   {[]*x509.Certificate{root.cert}, ErrForeign},
		"rank of another node": {
			[]*x509.Certificate{forge(first, x509.Certificate{}, "cohort://"+job+"/node/2/rank/9"), first.cert}, ErrRole,
		},
		"rank issued by the job": {[]*x509.Certificate{forge(root, x509.Certificate{}, "cohort://"+job+"/node/1/rank/9")}, ErrRole},
		"node issued by a node":  {[]*x509.Certificate{forge(first, x509.Certificate{}, "cohort://"+job+"/node/1"), first.cert}, ErrRole},
		"host issued by a node":  {[]*x509.Certificate{forge(first, x509.Certificate{}, "cohort://"+job+"/host"), first.cert}, ErrRole},
		"rank issued by a host": {
			[]*x509.Certificate{forge(signing, x509.Certificate{}, "cohort://"+job+"/node/1/rank/9"), signing.cert}, ErrRole,
		},
		"rank issued by a rank": {
			[]*x509.Certificate{forge(below, x509.Certificate{}, "cohort://"+job+"/node/1/rank/9"), below.cert, first.cert}, ErrForeign,
		},
		"two names":             {[]*x509.Certificate{both}, ErrForeign},
		"no name":               {[]*x509.Certificate{forge(root, x509.Certificate{})}, ErrForeign},
		"a host name beside it": {[]*x509.Certificate{named}, ErrForeign},
	} {
		if _, err := Verify(root.Certificate(), c.chain, now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	n, err := Verify(root.cert, []*x509.Certificate{rank, first.cert}, now)
	if err != nil || n != (Name{Job: job, Role: Rank, Node: 1, Rank: 5}) {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestClocks: a certificate is valid for clocks that are up to an hour behind, and for 30 days; what is wrong with the time is only said
// of certificates of the job.
func TestClocks(t *testing.T) {
	t.Parallel()
	root, foreign := newRoot(1, time.Time{}), newRoot(9, time.Time{})
	first := launcher(root, 1, now)
	rank := leaf(first, Name{Job: job, Role: Rank, Node: 1, Rank: 5}, now.Add(24*time.Hour))
	const day = 24 * time.Hour
	for after, want := range map[time.Duration]error{
		-2 * day: ErrClock, -Early - time.Second: ErrClock, -Early: nil, 0: nil, 2 * day: nil, Life: nil, Life + time.Second: ErrExpired,
		60 * day: ErrExpired,
	} {
		_, err := Verify(root.Certificate(), []*x509.Certificate{first.cert}, now.Add(after))
		if !errors.Is(err, want) {
			t.Errorf("after %v: %v, want %v", after, err, want)
		}
		strange := launcher(foreign, 1, now)
		if _, err = Verify(root.Certificate(), []*x509.Certificate{strange.cert}, now.Add(after)); !errors.Is(err, ErrForeign) {
			t.Errorf("a foreign one after %v: %v", after, err)
		}
	}
	for at, want := range map[time.Time]error{
		now: ErrClock, now.Add(day): nil, now.Add(Life): nil, now.Add(Life + time.Hour): ErrExpired, // its issuer ends then
	} {
		if _, err := Verify(root.Certificate(), []*x509.Certificate{rank, first.cert}, at); !errors.Is(err, want) {
			t.Errorf("a rank at %v: %v, want %v", at, err, want)
		}
	}
	_, err := Verify(root.Certificate(), []*x509.Certificate{first.cert}, now.Add(-2*day))
	const want = "it begins at 2026-11-19T11:00:00Z, and the clock of this computer shows 2026-11-17T12:00:00Z"
	if !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v", err)
	}
}

// TestAuthorityExpires: nothing is valid after the time of the token.
func TestAuthorityExpires(t *testing.T) {
	t.Parallel()
	root := newRoot(1, now.Add(time.Hour))
	first := launcher(root, 1, now)
	if end := first.cert.NotAfter; !end.Equal(now.Add(time.Hour)) {
		t.Errorf("the node's certificate ends at %v", end)
	}
	longer := forge(root, x509.Certificate{}, "cohort://"+job+"/host") // until the same time
	for after, want := range map[time.Duration]error{0: nil, time.Hour + time.Second: ErrExpired} {
		for _, c := range []*x509.Certificate{first.cert, longer} {
			if _, err := Verify(root.Certificate(), []*x509.Certificate{c}, now.Add(after)); !errors.Is(err, want) {
				t.Errorf("after %v: %v, want %v", after, err, want)
			}
		}
	}
}

// TestRequest: a request is for the key that has signed it.
func TestRequest(t *testing.T) {
	t.Parallel()
	key := must(NewKey())
	request := must(Request(key))
	if got, err := KeyOf(request); err != nil || !got.Equal(key.Public()) {
		t.Errorf("%v, %v", got, err)
	}
	changed := append([]byte(nil), request...)
	changed[len(changed)-1] ^= 1
	large := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{strings.Repeat("a", 1100)}}, key))
	p384 := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	for name, r := range map[string][]byte{
		"nothing": nil, "changed": changed, "cut": request[:100], "large": large,
		"another curve": must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, p384)),
	} {
		if _, err := KeyOf(r); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
	root := newRoot(1, time.Time{})
	der := must(root.Issue(Name{Job: job, Role: Node, Node: 3}, key.Public(), now))
	if _, err := NewNode(der, must(NewKey())); err == nil {
		t.Error("a node takes a certificate for the key of another")
	}
	if _, err := NewNode(must(root.Issue(Name{Job: job, Role: Host}, key.Public(), now)), key); err == nil {
		t.Error("a node takes the certificate of a host")
	}
	if _, err := NewNode([]byte("x"), key); err == nil {
		t.Error("a node takes what is not a certificate")
	}
}

// TestSixtyDays: a job of 60 days has a valid certificate at every minute, is renewed a few times only, also when it fails for a day at a
// time, and with a clock an hour behind.
func TestSixtyDays(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(day int) bool{
		"always works": func(int) bool { return false },
		"a day in two": func(day int) bool { return day%2 == 0 },
		"ten at first": func(day int) bool { return day >= 19 && day < 28 },
	} {
		root := newRoot(1, time.Time{})
		node := launcher(root, 1, now)
		renewal := NewRenewal(node.cert)
		renewed, tried := 0, 0
		for minute := range 60 * 24 * 60 {
			at := now.Add(time.Duration(minute) * time.Minute)
			if renewal.Due(at) {
				if tried++; fails(minute / (24 * 60)) {
					renewal.Failed(at)
				} else {
					node = launcher(root, 1, at)
					renewal = NewRenewal(node.cert)
					renewed++
				}
			}
			if at.Before(node.cert.NotBefore.Add(Early)) || at.After(node.cert.NotAfter) || at.Add(-Early).Before(node.cert.NotBefore) {
				t.Fatalf("%s: the certificate is not valid at minute %d", name, minute)
			}
			if minute%(6*60) == 0 {
				if _, err := Verify(root.Certificate(), []*x509.Certificate{node.cert}, at); err != nil {
					t.Fatalf("%s: at minute %d: %v", name, minute, err)
				}
			}
		}
		if renewed < 2 || renewed > 3 || tried > 240 {
			t.Errorf("%s: it was renewed %d times and tried %d times", name, renewed, tried)
		}
	}
}

// FuzzName: what is accepted is the form of the name that it yields.
func FuzzName(f *testing.F) {
	for _, seed := range []string{"cohort://j/host", "cohort://j/node/3/rank/17", "cohort://j/node/1/tool/rpc", "spiffe://x/y", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseName(text); err == nil && n.String() != text {
			t.Errorf("%q is accepted as %q", text, n)
		}
	})
}

// FuzzVerify: no certificate that another has made is believed, however it is changed.
func FuzzVerify(f *testing.F) {
	root, foreign := newRoot(1, time.Time{}), newRoot(9, time.Time{})
	theirs := launcher(foreign, 1, now)
	for _, c := range []*x509.Certificate{root.cert, foreign.cert, theirs.cert, leaf(theirs, Name{Job: job, Role: Rank, Node: 1}, now)} {
		f.Add(c.Raw, theirs.cert.Raw)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var chain []*x509.Certificate
		for _, der := range [][]byte{first, second} {
			if c, err := x509.ParseCertificate(der); err == nil {
				chain = append(chain, c)
			}
		}
		if n, err := Verify(root.cert, chain, now); err == nil {
			t.Errorf("%s is believed", n)
		}
	})
}

// FuzzRequest: no request makes the process panic, and what is accepted has a key of P-256.
func FuzzRequest(f *testing.F) {
	f.Add(must(Request(must(NewKey()))))
	f.Fuzz(func(t *testing.T, request []byte) {
		if key, err := KeyOf(request); err == nil && key.Curve != elliptic.P256() {
			t.Errorf("a key of %s", key.Curve.Params().Name)
		}
	})
}
