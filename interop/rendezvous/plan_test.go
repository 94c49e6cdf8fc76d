// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rendezvous_test checks that Go and PyTorch processes meet: by every scheme, with either side as the host.
package rendezvous_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rendezvous"
)

// planScript runs PyTorch's own rendezvous on each case, with stores that only note how they would have been made.
const planScript = `
import json, os, sys, datetime
import torch.distributed
mod = sys.modules["torch.distributed.rendezvous"]
made = {}

def tcp(*args, **kw):
    names = ["host_name", "port", "world_size", "is_master", "timeout"]
    kw.update(zip(names, args))
    made.update(host=kw["host_name"], port=kw["port"], size=kw["world_size"], master=kw["is_master"], libuv=kw.get("use_libuv"))
    return "tcp"

def file(path, size):
    made.update(path=path, size=size)
    return "file"

def prefix(text, store):
    made.update(prefix=text)
    return "prefix"

mod.TCPStore, mod.FileStore, mod.PrefixStore = tcp, file, prefix
base = dict(os.environ)
for case in json.loads(sys.argv[1]):
    os.environ.clear()
    os.environ.update({k: v for k, v in base.items() if k not in
        ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "USE_LIBUV", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT")})
    os.environ.update(case["env"])
    made.clear()
    try:
        if case["open"]:
            gen = mod._rendezvous_helper(case["url"], case["rank"], None)
        else:
            gen = torch.distributed.rendezvous(case["url"], case["rank"], case["size"])
        _, made["rank"], made["world"] = next(gen)
        print(json.dumps(made))
    except BaseException as e:
        print(json.dumps({"error": str(e), "kind": type(e).__name__}))
`

type planCase struct {
	URL  string            `json:"url"`
	Rank int               `json:"rank"`
	Size int               `json:"size"`
	Open bool              `json:"open"`
	Env  map[string]string `json:"env"`
	// words are what the error of Go must have where PyTorch's is a bare Python error.
	words string
}

type torchPlan struct {
	Error, Kind, Host, Path, Prefix string
	Port, Size, Rank, World         int
	Master                          bool
}

func planCases() []planCase {
	whole := map[string]string{"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "Node0", "MASTER_PORT": "29500"}
	with := func(changes ...string) map[string]string {
		env := maps.Clone(whole)
		for _, c := range changes {
			key, value, set := strings.Cut(c, "=")
			if set {
				env[key] = value
			} else {
				delete(env, key)
			}
		}
		return env
	}
	none := map[string]string{}
	var cases []planCase
	for _, url := range []string{
		"invalid://", "tcp://127.0.0.1?rank=0&world_size=1", "tcp://127.0.0.1:0?rank=0&world_size=1", "tcp://h:?rank=0&world_size=1",
		"tcp://127.0.0.1:23456?world_size=1", "tcp://127.0.0.1:23456?rank=0", "tcp://127.0.0.1:23456", "tcp://h:99999?rank=0&world_size=1",
		"tcp://h:abc?rank=0&world_size=1", "tcp://::1:29500?rank=0&world_size=1",
		"file://?rank=0&world_size=1", "file:///tmp/foo?world_size=1", "file:///tmp/foo?rank=0", "file://foo?rank=0&world_size=1",
		"tcp://Node0.Example:23456?rank=0&world_size=2", "TCP://10.0.0.1:1?rank=1&world_size=2", "tcp://[FE80::1]:1?rank=1&world_size=2",
		"tcp://me:pw@h:1?rank=1&world_size=2", "tcp://h:1?rank=1&world_size=-1", "tcp://h:1?rank=1&world_size=2&rank=0",
		"tcp://h:1?rank=1=7&world_size=2", "tcp://h:1?rank=1&world_size=2#rank=0", " tcp://h:1?rank=1&world_size=2\n",
		"tcp://h:1/path?rank=1&world_size=2", "tcp://h:1?&rank=1&&world_size=2&", "tcp://h:1?rank= 1 &world_size=%32&world_size=2",
		"tcp://h:1?rank=1&world_size=2&use_libuv=0", "tcp://h:1?rank=1&world_size=2&use_libuv=1",
		"tcp://h:1?rank=1&world_size=2&use_libuv=true",
		"file:///tmp/a%20b?rank=0&world_size=2", "file:////tmp/x?rank=0&world_size=2", "file:/tmp/x?rank=0&world_size=2",
		"file:///tmp/x;y?rank=0&world_size=2",
	} {
		cases = append(cases, planCase{URL: url, Rank: -1, Size: -1, Env: none})
	}
	for url, words := range map[string]string{
		"tcp://h:1?rank":                   `query item "rank" has no "="`,
		"tcp://h:1?rank=zero&world_size=1": "invalid literal for int() with base 10: 'zero'",
		"tcp://h:1?rank=&world_size=1":     "invalid literal for int() with base 10: ''",
		"tcp://:23456?rank=0&world_size=1": "host name missing",
		"":                                 "No rendezvous handler for ://", "tcp://[::1?rank=0&world_size=1": "Invalid IPv6 URL",
	} {
		cases = append(cases, planCase{URL: url, Rank: -1, Size: -1, Env: none, words: words})
	}
	for _, args := range [][2]int{{12, 16}, {-1, 16}, {12, -1}} {
		cases = append(cases, planCase{URL: "file://foo?rank=12&world_size=16", Rank: args[0], Size: args[1], Env: none},
			planCase{URL: "tcp://h:1?use_libuv=0", Rank: args[0], Size: args[1], Env: none})
	}
	for _, env := range []map[string]string{
		with(), with("RANK"), with("RANK="), with("WORLD_SIZE"), with("MASTER_ADDR"), with("MASTER_PORT"), with("MASTER_PORT="),
		with("MASTER_PORT=65536"), with("MASTER_PORT=-1"), with("MASTER_PORT= 29501 "), with("RANK=0"), with("USE_LIBUV=0"),
		with("USE_LIBUV=1"),
		with("USE_LIBUV="), with("RANK=0", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RESTART_COUNT=3"),
		with("RANK=0", "TORCHELASTIC_USE_AGENT_STORE=true"), with("RANK=0", "TORCHELASTIC_USE_AGENT_STORE=1"),
	} {
		cases = append(cases, planCase{URL: "env://", Rank: -1, Size: -1, Env: env},
			planCase{URL: "env://?rank=0&world_size=2", Rank: -1, Size: -1, Env: env})
	}
	for _, at := range []string{"Node0", "node0"} { // the launcher's store, and another
		cases = append(cases, planCase{
			URL: "tcp://" + at + ":29500?rank=0&world_size=2", Rank: -1, Size: -1,
			Env: with("MASTER_ADDR=node0", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RESTART_COUNT=3"),
		},
			planCase{
				URL: "tcp://" + at + ":29501?rank=0&world_size=2", Rank: -1, Size: -1,
				Env: with("MASTER_ADDR=node0", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RESTART_COUNT=3"),
			})
	}
	for _, url := range []string{"env://", "tcp://h:1", "tcp://h:1?rank=2"} {
		cases = append(cases, planCase{URL: url, Rank: 3, Size: -1, Open: true, Env: with()},
			planCase{URL: url, Rank: 3, Size: -1, Open: true, Env: with("RANK", "WORLD_SIZE")})
	}
	return cases
}

// TestRendezvousPlansAsPyTorch asks PyTorch and Go the same questions: where PyTorch refuses, Go's error has PyTorch's
// words; where it continues, both would make the same store.
func TestRendezvousPlansAsPyTorch(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		cases := planCases()
		question, err := json.Marshal(cases)
		if err != nil {
			t.Fatal(err)
		}
		answers := strings.Split(strings.TrimSpace(torch.Run(t,
			torchtest.Script{Source: planScript, Args: []string{string(question)}})), "\n")
		if len(answers) != len(cases) {
			t.Fatalf("%d answers to %d cases", len(answers), len(cases))
		}
		refused := 0
		for i, c := range cases {
			var want torchPlan
			if err := json.Unmarshal([]byte(answers[i]), &want); err != nil {
				t.Fatalf("%q: %v", answers[i], err)
			}
			got, err := rendezvous.NewRegistry().Plan(rendezvous.Request{
				URL: c.URL, Rank: cohort.Rank(c.Rank), WorldSize: c.Size, Open: c.Open,
				Env: func(name string) (string, bool) { value, set := c.Env[name]; return value, set },
			})
			if strings.HasPrefix(c.URL, "tcp://127.0.0.1:0?") {
				// A world of one may leave the port to the system, as in 2.14; older versions refuse it.
				if err != nil || (want.Kind == "") != torch.About(t).Since(2, 10) {
					t.Errorf("%q: PyTorch %s, Go returns %v", c.URL, answers[i], err)
				}
				continue
			}
			if want.Kind != "" {
				refused++
				words := c.words
				if words == "" {
					words = want.Error
				}
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("%q %v: PyTorch raises %s %q, Go returns %v", c.URL, c.Env, want.Kind, want.Error, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%q %v: PyTorch accepts it as %s, Go returns %v", c.URL, c.Env, answers[i], err)
				continue
			}
			if strings.Contains(c.URL, ":29501") && !torch.About(t).Since(2, 14) {
				want.Master = true // older versions are clients of a store without a host
			}
			checkPlan(t, c, got, want)
		}
		t.Logf("%d cases, PyTorch refuses %d", len(cases), refused)
		if refused < 20 || refused > len(cases)-20 {
			t.Errorf("the cases have lost their balance: PyTorch refuses %d of %d", refused, len(cases))
		}
	})
}

func checkPlan(t *testing.T, c planCase, got rendezvous.Plan, want torchPlan) {
	t.Helper()
	same := int(got.Rank) == want.Rank && got.WorldSize == want.World && got.WorldSize == want.Size &&
		got.Host == want.Host && got.Port == want.Port && got.Path == want.Path && got.Master == want.Master
	if want.Prefix != "" {
		same = same && got.AgentStore && want.Prefix == "/worker/attempt_"+got.Attempt
	}
	if !same {
		t.Errorf("%q %v:\n     Go %+v\nPyTorch %+v", c.URL, c.Env, got, want)
	}
}
