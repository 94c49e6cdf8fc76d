// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestRanksBehindGateways: ranks with one store at different gateways are one job, of which others may run elsewhere, and the gateway is
// asked; without a gateway the store is.
func TestRanksBehindGateways(t *testing.T) {
	t.Parallel()
	rank := func(pid int, more ...string) process {
		env := append([]string{"WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1", "TORCHELASTIC_RUN_ID=job"}, more...)
		return process{pid: pid, env: parseEnviron([]byte(strings.Join(env, "\x00")))}
	}
	for _, store := range []string{"tls://10.1.2.3:29400", "10.1.2.3:29400"} {
		jobs := group(map[int]process{
			7: rank(7, "RANK=0", "MASTER_PORT=40001", "COHORT_STORE="+store),
			8: rank(8, "RANK=1", "MASTER_PORT=40002", "COHORT_STORE="+store),
		})
		if len(jobs) != 1 || len(jobs[0].Ranks) != 2 || jobs[0].Store != "10.1.2.3:29400" || jobs[0].Local ||
			jobs[0].asked() != "127.0.0.1:40001" {
			t.Errorf("%s: %+v", store, jobs)
		}
	}
	jobs := group(map[int]process{7: rank(7, "RANK=0", "MASTER_PORT=40001")})
	if len(jobs) != 1 || jobs[0].Store != "127.0.0.1:40001" || jobs[0].asked() != jobs[0].Store || !jobs[0].Local {
		t.Errorf("without a gateway: %+v", jobs)
	}
}

// TestMissing: of the keys that a gateway names, those that are there are left out; a barrier stays.
func TestMissing(t *testing.T) {
	t.Parallel()
	s, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	c, err := tcpstore.Dial(t.Context(), s.Addr().String(), tcpstore.WithRawKeys())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err = c.Set(t.Context(), "there", nil); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	left := missing(t.Context(), c, []tcpstore.Wait{
		{Key: "there", Since: now}, {Key: "not", Since: now}, {Key: "there", Barrier: true, Since: now}, {Key: "not", Since: now},
	})
	if len(left) != 3 || left[0].Key != "not" || !left[1].Barrier || left[2].Key != "not" {
		t.Errorf("%+v", left)
	}
}
