// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// recorded is what torchrun of PyTorch 2.14 prints for a job of two ranks of which the second raises, its texts shortened.
const recorded = `{"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "ed76", "global_rank": null, "group_rank": null, "worker_id": null, "role": "default", "hostname": "vm", "state": "RENDEZVOUS", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": null, \"entry_point\": \"python3\"}", "agent_restarts": 0, "duration_ms": 291.75}}
{"name": "torchelastic.worker.status.ASSIGN_WORKER_RANKS", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "ed76", "global_rank": null, "group_rank": null, "worker_id": null, "role": "default", "hostname": "vm", "state": "ASSIGN_WORKER_RANKS", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": null, \"entry_point\": \"python3\"}", "agent_restarts": 0, "duration_ms": 0.0}}
{"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "ed76", "global_rank": 0, "group_rank": 0, "worker_id": "4238", "role": "default", "hostname": "vm", "state": "START", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", \"local_rank\": [0], \"role_rank\": [0], \"role_world_size\": [2], \"exit_code\": [null], \"worker_pid\": [null]}", "agent_restarts": 0, "duration_ms": null}}
{"name": "torchelastic.worker.status.START", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "ed76", "global_rank": 1, "group_rank": 0, "worker_id": "4239", "role": "default", "hostname": "vm", "state": "START", "total_run_time": 0, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", \"local_rank\": [1], \"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [null], \"worker_pid\": [null]}", "agent_restarts": 0, "duration_ms": null}}
{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "ed76", "global_rank": 0, "group_rank": 0, "worker_id": "4238", "role": "default", "hostname": "vm", "state": "FAILED", "total_run_time": 3, "rdzv_backend": "c10d", "raw_error": "{\"message\": \"<NONE>\"}", "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", \"local_rank\": [0], \"role_rank\": [0], \"role_world_size\": [2], \"exit_code\": [-15], \"worker_pid\": [4238]}", "agent_restarts": 0, "duration_ms": null}}
{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "timestamp": 0, "metadata": {"run_id": "ed76", "global_rank": 1, "group_rank": 0, "worker_id": "4239", "role": "default", "hostname": "vm", "state": "FAILED", "total_run_time": 3, "rdzv_backend": "c10d", "raw_error": "{\"message\": {\"message\": \"ValueError: bad batch 17\"}}", "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\", \"local_rank\": [1], \"role_rank\": [1], \"role_world_size\": [2], \"exit_code\": [1], \"worker_pid\": [4239]}", "agent_restarts": 0, "duration_ms": null}}
{"name": "torchelastic.worker.status.SUCCEEDED", "source": "AGENT", "timestamp": 0, "metadata": {"run_id": "ed76", "global_rank": null, "group_rank": 0, "worker_id": null, "role": "default", "hostname": "vm", "state": "SUCCEEDED", "total_run_time": 3, "rdzv_backend": "c10d", "raw_error": null, "metadata": "{\"group_world_size\": 1, \"entry_point\": \"python3\"}", "agent_restarts": 0, "duration_ms": null}}
`

// events reads events, the texts in them that are JSON too.
func events(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(text) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		m, _ := e["metadata"].(map[string]any)
		for _, name := range []string{"metadata", "raw_error"} {
			if text, ok := m[name].(string); ok {
				var inner any
				if err := json.Unmarshal([]byte(text), &inner); err == nil {
					m[name] = inner
				}
			}
		}
		all = append(all, e)
	}
	return all
}

// TestRecorded: the events of the same job are those of torchrun, each with every field.
func TestRecorded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := newEventLog(&out, eventJob{
		RunID: "ed76", Role: "default", Host: "vm", Backend: "c10d", Program: "python3",
		Started: time.Now().Add(-3500 * time.Millisecond),
	})
	l.begun(eventPlace{Nodes: 1}, 291750*time.Microsecond)
	workers := []eventWorker{
		{Role: "default", Rank: 0, Local: 0, RoleRank: 0, RoleWorld: 2, PID: 4238, Code: -15},
		{
			Role: "default", Rank: 1, Local: 1, RoleRank: 1, RoleWorld: 2, PID: 4239, Code: 1,
			Error: json.RawMessage(`{"message":{"message":"ValueError: bad batch 17"}}`),
		},
	}
	l.started(workers[0])
	l.started(workers[1])
	l.ended(workers, false)
	got, want := events(t, out.String()), events(t, recorded)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) {
			t.Fatalf("%d events, want %d", len(got), len(want))
		}
		m, _ := got[i]["metadata"].(map[string]any)
		if total, _ := m["total_run_time"].(float64); total > 3 {
			m["total_run_time"] = 3.0 // a slow machine
		}
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("event %d:\n%v\nwant\n%v", i, got[i], want[i])
		}
	}
}

// TestOtherEnds: a worker that ended well in a failed job is "terminated", a launcher that was ended has failed, and no log writes nothing.
func TestOtherEnds(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := newEventLog(&out, eventJob{})
	l.begun(eventPlace{Nodes: 2}, 0)
	l.begun(eventPlace{Restarts: 1, Node: 1, Nodes: 3}, 0)
	l.ended([]eventWorker{{Code: 0}, {Code: 7, Error: json.RawMessage("{")}}, false)
	l.ended([]eventWorker{{Code: 0}}, true)
	l.failed("ended by signal 15 (SIGTERM)")
	var none *eventLog
	none.begun(eventPlace{}, 0)
	none.started(eventWorker{})
	none.ended(nil, true)
	none.failed("x")
	var states []string
	for _, e := range events(t, out.String()) {
		m, _ := e["metadata"].(map[string]any)
		d, _ := m["metadata"].(map[string]any)
		text, _ := json.Marshal([]any{e["source"], m["state"], m["group_rank"], d["group_world_size"], m["agent_restarts"], m["raw_error"]})
		states = append(states, string(text))
	}
	want := `["AGENT","RENDEZVOUS",null,null,0,null]
["AGENT","ASSIGN_WORKER_RANKS",null,null,0,null]
["AGENT","RENDEZVOUS",0,2,1,null]
["AGENT","ASSIGN_WORKER_RANKS",0,2,1,null]
["WORKER","TERMINATED",1,3,1,null]
["WORKER","FAILED",1,3,1,{"message":"\u003cNONE\u003e"}]
["AGENT","SUCCEEDED",1,3,1,null]
["WORKER","SUCCEEDED",1,3,1,null]
["AGENT","SUCCEEDED",1,3,1,null]
["AGENT","FAILED",1,3,1,"ended by signal 15 (SIGTERM)"]`
	if got := strings.Join(states, "\n"); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}
