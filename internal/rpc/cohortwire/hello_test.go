// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
)

// entries are what names have published.
type entries map[string]string

func (e entries) published(id Identity) ([]byte, error) {
	if id.Name == "unreachable" {
		return nil, cohort.New("store: get", cohort.Unavailable, "no answer")
	}
	return []byte(e[id.Name]), nil
}

func TestProof(t *testing.T) {
	store := entries{"a": "secret of a", "b": "secret of b"}
	for _, c := range []struct {
		name           string
		a, b           Config
		refused        bool // by b
		provenA, provB bool // what b knows of a, what a knows of b
	}{
		{
			name: "both prove it", a: Config{Secret: []byte("secret of a"), Published: store.published},
			b: Config{Secret: []byte("secret of b"), Published: store.published}, provenA: true, provB: true,
		},
		{
			name: "another secret", a: Config{Secret: []byte("guessed")},
			b: Config{Secret: []byte("secret of b"), Published: store.published}, refused: true,
		},
		{name: "no secret", a: Config{}, b: Config{Secret: []byte("secret of b"), Published: store.published}, refused: true},
		{name: "a name without an entry is a client", a: Config{Identity: Identity{Name: "client"}}, b: Config{Published: store.published}},
		{
			name: "a store that does not answer", a: Config{Identity: Identity{Name: "unreachable"}},
			b: Config{Published: store.published}, refused: true,
		},
		{name: "no check", a: Config{Secret: []byte("x")}, b: Config{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ca, cb := net.Pipe()
			if c.a.Identity.Name == "" {
				c.a.Identity.Name = "a"
			}
			c.b.Identity.Name = "b"
			c.a.OnFrame, c.b.OnFrame, c.a.Dialled = ignore, ignore, true
			var x, y *Link
			var ex, ey error
			var wg sync.WaitGroup
			wg.Go(func() { x, ex = Start(ca, nil, c.a) })
			wg.Go(func() { y, ey = Start(cb, nil, c.b) })
			wg.Wait()
			for _, l := range []*Link{x, y} {
				if l != nil {
					defer func() { _ = l.Close() }()
				}
			}
			if c.refused {
				if ey == nil {
					t.Fatal("the link was started")
				}
				return
			}
			if ex != nil || ey != nil {
				t.Fatal(ex, ey)
			}
			if y.Proven() != c.provenA || x.Proven() != c.provB {
				t.Errorf("proven: %v and %v", y.Proven(), x.Proven())
			}
		})
	}
}

// TestProofIsOfThisConnection: what a genuine worker sends on one connection is of no use to another process on another connection, neither
// later nor at the same time.
func TestProofIsOfThisConnection(t *testing.T) {
	store := entries{"a": "secret of a", "b": "secret of b"}
	start := func(conn net.Conn, name string, dialled bool) error {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		l, err := Start(conn, nil, Config{
			Identity: Identity{Name: name}, Secret: []byte(store[name]), Published: store.published, OnFrame: ignore,
			Dialled: dialled, Limit: -1,
		})
		if err == nil {
			_ = l.Close()
		}
		return err
	}
	t.Run("repeated", func(t *testing.T) {
		near, far := net.Pipe()
		var heard bytes.Buffer
		other, otherFar := net.Pipe()
		done := make(chan struct{})
		go func() { // a genuine conversation of a, overheard
			defer close(done)
			_ = start(other, "a", true)
		}()
		genuine := make(chan struct{})
		go func() {
			defer close(genuine)
			_, _ = otherFar.Write(Identity{Name: "b"}.opening())
		}()
		_ = otherFar.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(&heard, otherFar)
		_ = otherFar.Close()
		<-done
		<-genuine
		go func() {
			_, _ = far.Write(heard.Bytes())
			drain(far)
		}()
		err := start(near, "b", false)
		_ = far.Close()
		if !errors.Is(err, cohort.Protocol) {
			t.Errorf("b took it: %v", err)
		}
	})
	t.Run("passed on", func(t *testing.T) { // an impostor dials both and claims to each to be the other
		toA, atA := net.Pipe()
		toB, atB := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(toA, toB); _ = toA.Close() })
		wg.Go(func() { _, _ = io.Copy(toB, toA); _ = toB.Close() })
		var ea, eb error
		wg.Go(func() { ea = start(atA, "a", false) })
		wg.Go(func() { eb = start(atB, "b", false) })
		wg.Wait()
		if ea == nil || eb == nil {
			t.Errorf("they took the impostor for each other: %v, %v", ea, eb)
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add(Identity{"a", 1, 2}.opening())
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ParseHeader(data, Limits{Body: 1 << 10})
		if err != nil || int64(h.Body) > int64(len(data)-HeaderSize) {
			return
		}
		frame, _, err := h.Parse(data[HeaderSize : HeaderSize+int(h.Body)])
		if err != nil {
			return
		}
		id, n, err := parseHello(frame)
		if err != nil {
			return
		}
		again, m, err := parseHello(id.frame(n))
		if err != nil || again != id || m != n {
			t.Fatalf("%v became %v, %v", id, again, err)
		}
		if ok, _ := (proof{of: id}).check(frame, []byte("secret")); ok {
			t.Fatal("a hello was taken for a proof")
		}
	})
}
