// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestStrangersCostLittle: before it has joined a client may send MaxJoin bytes and has joinTime, whatever it sends again and again.
func TestStrangersCostLittle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		says    string
		every   time.Duration
		foreign bool
		after   time.Duration
	}{
		"nothing":         {"", time.Hour, true, joinTime + lastLook},
		"alive":           {`{"alive":true}` + "\n", time.Second, true, joinTime + lastLook},
		"no line end":     {strings.Repeat("x", 1<<20), 0, true, 0},
		"a long request":  {`{"join":{"run_id":"` + strings.Repeat("x", MaxJoin), 0, true, 0},
		"a byte at times": {"x", 40 * time.Millisecond, true, joinTime},
		"something else":  {"GET / HTTP/1.1\r\n\r\n", time.Hour, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				done := make(chan struct{})
				go func() {
					for {
						if _, err := theirs.Write([]byte(c.says)); err != nil {
							return
						}
						select {
						case <-time.After(c.every):
						case <-done:
							return
						}
					}
				}()
				began := time.Now()
				m, _, foreign, err := request(ours, time.Now().Add(joinTime))
				took := time.Since(began)
				if m != nil || err == nil || foreign != c.foreign || took < c.after || took > c.after+lastLook {
					t.Errorf("after %v: %+v, foreign %v, %v", took, m, foreign, err)
				}
				close(done)
				_ = ours.Close()
				_ = theirs.Close()
			})
		})
	}
}

// TestRequestInPieces: what follows the request to join is not lost, however it arrives.
func TestRequestInPieces(t *testing.T) {
	t.Parallel()
	const text = `{"alive":true}` + "\n" + `{"join":{"run_id":"job","pid":7}}` + "\n" + `{"leave":{"reason":"goes"}}` + "\n"
	for _, size := range []int{1, 7, len(text)} {
		ours, theirs := net.Pipe()
		go func() {
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				_, _ = theirs.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
		}()
		m, rest, _, err := request(ours, time.Now().Add(time.Minute))
		if err != nil || m.RunID != "job" || m.PID != 7 {
			t.Fatalf("in pieces of %d: %+v, %v", size, m, err)
		}
		next, err := NewWire(&Greeting{Conn: ours, first: rest}, time.Minute).Receive()
		if err != nil || next.Leave == nil || next.Leave.Reason != "goes" {
			t.Errorf("in pieces of %d: then %+v, %v", size, next, err)
		}
		_ = ours.Close()
		_ = theirs.Close()
	}
}
