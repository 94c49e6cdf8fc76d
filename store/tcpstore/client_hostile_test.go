// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// wicked changes what a server answers, on real connections: it hands it out byte by byte, ends a connection within it, or replaces a
// frame. It does nothing until it is told to, and then it does it once.
type wicked struct {
	mu      sync.Mutex
	pieces  bool                // byte by byte
	left    int                 // bytes until the connection that is read ends; less than 0: it does not
	read    int                 // bytes that were read
	replace func([]byte) []byte // the next frame of the native dialect
}

func (w *wicked) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wickedConn{Conn: conn, of: w}, nil
}

func (w *wicked) set(pieces bool, left int, replace func([]byte) []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pieces, w.left, w.read, w.replace = pieces, left, 0, replace
}

func (w *wicked) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.read
}

// wickedConn is a connection of a client, read by one goroutine at a time.
type wickedConn struct {
	net.Conn
	of    *wicked
	frame []byte // of a frame that will be replaced, as far as it has come
	ready []byte // what was replaced
}

func (c *wickedConn) Read(b []byte) (int, error) {
	if len(c.ready) > 0 {
		n := copy(b, c.ready)
		c.ready = c.ready[n:]
		return n, nil
	}
	w := c.of
	w.mu.Lock()
	pieces, left, replace := w.pieces, w.left, w.replace
	if left == 0 {
		w.left = -1
	}
	w.mu.Unlock()
	switch {
	case left == 0:
		_ = c.Close()
		return 0, io.EOF
	case replace != nil:
		return c.readFrame(b, replace)
	case pieces || left > 0:
		b = b[:min(len(b), 1)]
	}
	n, err := c.Conn.Read(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read += n
	if w.left > 0 {
		w.left -= n
	}
	return n, err
}

func (c *wickedConn) readFrame(b []byte, replace func([]byte) []byte) (int, error) {
	for {
		size := 4
		if len(c.frame) >= 4 {
			size += int(binary.LittleEndian.Uint32(c.frame))
		}
		if len(c.frame) >= 4 && len(c.frame) == size {
			break
		}
		piece := make([]byte, size-len(c.frame))
		n, err := c.Conn.Read(piece)
		c.frame = append(c.frame, piece[:n]...)
		if err != nil {
			return 0, err
		}
	}
	c.ready, c.frame = replace(c.frame), nil
	c.of.set(false, -1, nil)
	return c.Read(b)
}

// question is an operation on a store that prepare has filled.
type question struct {
	name  string
	needs store.Feature
	ask   func(ctx context.Context, c *tcpstore.Client) (answer any, err error)
	want  any
	often bool // asking again gives the same answer
}

const noFeature store.Feature = 255

var questions = []question{
	{
		"set", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) { return nil, c.Set(ctx, "set", []byte("v")) },
		nil, true,
	},
	{"get", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		v, err := c.Get(ctx, "text")
		return string(v), err
	}, "some text", true},
	{"get nothing", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		v, err := c.Get(ctx, "empty")
		return string(v), err
	}, "", true},
	{"add", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) { return c.Add(ctx, "number", 0) }, int64(41), true},
	{"compare-and-set", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		v, err := c.CompareAndSet(ctx, "text", []byte("other"), []byte("new"))
		return string(v), err
	}, "some text", true},
	{"check", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) { return c.Check(ctx, "text", "number") }, true, true},
	{
		"wait", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) { return nil, c.Wait(ctx, "text", "number") },
		nil, true,
	},
	{"delete", noFeature, func(ctx context.Context, c *tcpstore.Client) (any, error) { return c.Delete(ctx, "nothing") }, false, true},
	{"multi-get", store.FeatureMultiGet, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		v, err := c.MultiGet(ctx, "text", "empty", "number")
		return fmt.Sprintf("%q", v), err
	}, `["some text" "" "41"]`, true},
	{"multi-set", store.FeatureMultiSet, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		return nil, c.MultiSet(ctx, []string{"a", "b"}, [][]byte{{1}, {2}})
	}, nil, true},
	{"append", store.FeatureAppend, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		return nil, c.Append(ctx, "appended", []byte("x"))
	}, nil, false},
	{"queue length", store.FeatureQueue, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		return c.QueueLen(ctx, "queue")
	}, 2, true},
	{"push", store.FeatureQueue, func(ctx context.Context, c *tcpstore.Client) (any, error) {
		return nil, c.QueuePush(ctx, "pushed", []byte("x"))
	}, nil, false},
}

// prepare gives the store what the questions ask for.
func prepare(t *testing.T, c *tcpstore.Client) {
	t.Helper()
	ctx := t.Context()
	err := errors.Join(c.Set(ctx, "text", []byte("some text")), c.Set(ctx, "empty", nil), c.Set(ctx, "number", []byte("41")))
	if store.Supports(c, store.FeatureQueue) {
		err = errors.Join(err, c.QueuePush(ctx, "queue", []byte("1")), c.QueuePush(ctx, "queue", []byte("2")))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// eachQuestion asks every question in every dialect through a connection that can be wicked.
func eachQuestion(t *testing.T, test func(t *testing.T, w *wicked, q *question, ask func() (any, error), c *tcpstore.Client)) {
	t.Helper()
	for _, dialect := range dialects {
		t.Run(dialect.String(), func(t *testing.T) {
			t.Parallel()
			w := &wicked{left: -1}
			c := connect(t, serve(t).Addr().String(), tcpstore.WithDialect(dialect), tcpstore.WithDialer(w.dial))
			prepare(t, c)
			for i := range questions {
				q := &questions[i]
				if q.needs != noFeature && !store.Supports(c, q.needs) {
					continue
				}
				ask := func() (any, error) {
					ctx, cancel := context.WithTimeout(t.Context(), soon)
					defer cancel()
					return q.ask(ctx, c)
				}
				if got, err := ask(); err != nil || got != q.want {
					t.Fatalf("%s: %v, %v", q.name, got, err)
				}
				test(t, w, q, ask, c)
				w.set(false, -1, nil)
				// What the store holds has not changed, and the client works.
				for turn := range 2 {
					if got, err := ask(); turn == 1 && (err != nil || got != q.want) {
						t.Fatalf("%s, afterwards: %v, %v", q.name, got, err)
					}
				}
			}
		})
	}
}

// TestAnswersByteByByte are the same.
func TestAnswersByteByByte(t *testing.T) {
	t.Parallel()
	eachQuestion(t, func(t *testing.T, w *wicked, q *question, ask func() (any, error), _ *tcpstore.Client) {
		t.Helper()
		w.set(true, -1, nil)
		if got, err := ask(); err != nil || got != q.want {
			t.Errorf("%s: %v, %v", q.name, got, err)
		}
	})
}

// TestAnswerCutAtEveryByte: the connection ends before every byte of an answer. That is an error that says so, or the client has asked
// again; it is never another answer.
func TestAnswerCutAtEveryByte(t *testing.T) {
	t.Parallel()
	eachQuestion(t, func(t *testing.T, w *wicked, q *question, ask func() (any, error), _ *tcpstore.Client) {
		t.Helper()
		w.set(true, -1, nil)
		if _, err := ask(); err != nil {
			t.Fatal(err)
		}
		for cut := range w.count() {
			w.set(true, cut, nil)
			if got, err := ask(); err == nil && got != q.want || err != nil && !isGone(err) {
				t.Errorf("%s, cut at %d: %v, %v", q.name, cut, got, err)
			}
			w.set(false, -1, nil)
			if got, err := ask(); err != nil || got != q.want {
				t.Fatalf("%s, after a cut at %d: %v, %v", q.name, cut, got, err)
			}
		}
	})
}

// TestWickedAnswers: an answer of the native dialect comes twice, belongs to nothing, says a length that cannot be, or has a body that is
// not one. The client says that, or has what it asked for, and goes on.
func TestWickedAnswers(t *testing.T) {
	t.Parallel()
	length := func(n uint32) func([]byte) []byte {
		return func(f []byte) []byte {
			binary.LittleEndian.PutUint32(f, n)
			return f
		}
	}
	sized := func(f []byte) []byte { return length(uint32(len(f) - 4))(f) }
	attacks := map[string]func([]byte) []byte{
		"twice":          func(f []byte) []byte { return append(bytes.Clone(f), f...) },
		"to no call":     func(f []byte) []byte { f[7] ^= 0x40; return f },
		"huge":           length(1<<32 - 1),
		"over the limit": length(1<<30 + 1),
		"nothing":        length(0),
		"no status":      length(4),
		"one byte less":  func(f []byte) []byte { return sized(f[:max(len(f)-1, 9)]) },
		"one byte more":  func(f []byte) []byte { return sized(append(f, 0)) },
		"large":          func(f []byte) []byte { return sized(append(f, make([]byte, 1<<20)...)) },
		"unknown code":   func(f []byte) []byte { f[8] = 250; return f },
		"code zero":      func(f []byte) []byte { return sized(f[:9]) },
		"large length":   func(f []byte) []byte { return sized(append(f[:9], bytes.Repeat([]byte{0xff}, 16)...)) },
	}
	eachQuestion(t, func(t *testing.T, w *wicked, q *question, ask func() (any, error), c *tcpstore.Client) {
		t.Helper()
		if c.Dialect() != tcpstore.DialectNative {
			return
		}
		for name, attack := range attacks {
			w.set(false, -1, attack)
			start := time.Now()
			got, err := ask()
			if err == nil && got != q.want || errors.Is(err, cohort.DeadlineExceeded) || time.Since(start) > soon {
				t.Errorf("%s, %s: %v, %v after %v", q.name, name, got, err, time.Since(start))
			}
			w.set(false, -1, nil)
			if got, err := ask(); err != nil || got != q.want {
				t.Errorf("%s, after %s: %v, %v", q.name, name, got, err)
			}
		}
	})
}

// TestOneCutDoesNotDecideAboutTheDialect: a server that closes the connection at the greeting is an old one of PyTorch, but a network or a
// server without room closes connections too.
func TestOneCutDoesNotDecideAboutTheDialect(t *testing.T) {
	t.Parallel()
	addr := serve(t).Addr().String()
	for cuts := 1; cuts <= 2; cuts++ {
		left := cuts
		c := connect(t, addr, tcpstore.WithDialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if left--; left >= 0 && err == nil {
				return &wickedConn{Conn: conn, of: new(wicked)}, nil
			}
			return conn, err
		}))
		if c.Dialect() != tcpstore.DialectNative || !store.Supports(c, store.FeatureQueue) {
			t.Errorf("after %d cuts: %v", cuts, c.Dialect())
		}
	}
}
