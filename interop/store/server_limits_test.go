// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

//go:embed server_limits.py
var limitsScript string

// TestServerLimits: PyTorch clients of two versions that go beyond the limits of a store lose the connections on which they do. What they
// stored before stays, and the connections that keep to the limits go on.
func TestServerLimits(t *testing.T) {
	torchtest.V26.Need(t)
	torchtest.Newest.Need(t)
	s, err := tcpstore.Listen("127.0.0.1:0",
		tcpstore.WithLimits(tcpstore.Limits{Conns: 16, Memory: 16 << 20, Value: 1 << 20, Key: 4 << 10}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	var procs []*torchtest.Proc
	for i := range 2 {
		for _, torch := range []*torchtest.Torch{torchtest.V26, torchtest.Newest} {
			procs = append(procs, torch.Start(t,
				torchtest.Script{Source: limitsScript, Args: []string{strconv.Itoa(s.Port()), fmt.Sprintf("%s-%d", torch.Name, i)}}))
		}
	}
	for _, p := range procs {
		p.Expect(t, "ready")
	}
	for _, p := range procs {
		p.Send(t, "go")
	}
	for _, p := range procs {
		line := p.Line(t)
		if !strings.HasPrefix(line, "ok ") {
			t.Fatalf("output %q", line)
		}
		for _, what := range []string{"value", "key", "memory"} { // there may be room for the connections of one client
			if !strings.Contains(line, what) {
				t.Errorf("%s was never refused: %s", what, line)
			}
		}
		t.Log(line)
		p.MustExit(t, time.Minute)
	}
	if stats := s.Stats(); stats.Cut == 0 {
		t.Errorf("%+v", stats)
	}
}
