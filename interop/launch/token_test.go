// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobtoken"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestTokenOnTwoNodes: scripts that know nothing of tokens add up the ranks of two nodes that have one. Each rank finds the store at its
// own launcher's gateway. One of the scripts has PyTorch connect to the port of the store itself too: it gets nothing, which the launcher
// there says once.
func TestTokenOnTwoNodes(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		dir := place(t, torch)
		file, token := filepath.Join(dir, "job.token"), newToken(t)
		if err := os.WriteFile(file, []byte(token.Text()), 0o600); err != nil {
			t.Fatal(err)
		}
		endpoint := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
		var nodes []*job
		for n, script := range []string{"/guarded.py", "/reduce.py"} {
			nodes = append(nodes, cohortRun(t, torch, dir, []string{
				"--nnodes", "2", "--node-rank", strconv.Itoa(n), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint,
				"--rdzv-conf", fmt.Sprintf("is_host=%d", 1-n), "--token-file", file,
			}, "-u", dir+script, dir))
		}
		for n, j := range nodes {
			if code := j.end(); code != 0 {
				t.Fatalf("node %d: exit code %d\n%s%s", n, code, j.out, j.err)
			}
		}
		gateways := map[string]bool{}
		for rank, r := range results(t, dir) {
			if r.Sum != 3 || r.Env["TORCHELASTIC_USE_AGENT_STORE"] != "True" || r.Env["MASTER_ADDR"] != "127.0.0.1" {
				t.Errorf("rank %d: sum %v, %v", rank, r.Sum, r.Env)
			}
			gateways[r.Env["MASTER_PORT"]] = true
			if !strings.HasPrefix(r.Env["COHORT_STORE"], "tls://127.0.0.1:") || gateways[r.Env["COHORT_STORE"][len("tls://127.0.0.1:"):]] {
				t.Errorf("rank %d has the store %s and the gateway %s", rank, r.Env["COHORT_STORE"], r.Env["MASTER_PORT"])
			}
			if rank == 0 && (len(r.Argv) != 2 || r.Argv[1] != "refused") {
				t.Errorf("at the store itself: %q", r.Argv)
			}
		}
		if len(gateways) != 2 {
			t.Errorf("the gateways are %v", gateways)
		}
		if n := strings.Count(nodes[0].err.String(), "has connected to the store of the job without TLS and was refused"); n != 1 {
			t.Errorf("the launcher says %d times that it has refused a client:\n%s", n, nodes[0].err)
		}
	})
}

func newToken(t *testing.T) jobtoken.Token {
	t.Helper()
	token, err := jobtoken.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return token
}
