// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cohort-dist/cohort"
)

// environment returns a lookup over "NAME=value" words.
func environment(words ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, word := range words {
			if key, value, _ := strings.Cut(word, "="); key == name {
				return value, true
			}
		}
		return "", false
	}
}

func request(url string, words ...string) Request {
	return Request{URL: url, Rank: cohort.NoRank, WorldSize: NoWorldSize, Env: environment(words...)}
}

// checkRefused runs a plan that must fail and compares the words of its error.
func checkRefused(t *testing.T, r Request, code cohort.Code, words ...string) {
	t.Helper()
	plan, err := NewRegistry().Plan(r)
	if err == nil {
		t.Fatalf("%s: planned %+v, want an error", r.URL, plan)
	}
	if !errors.Is(err, code) {
		t.Errorf("%s: %v is not %v", r.URL, err, code)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: the error lacks %q: %v", r.URL, word, err)
		}
	}
	var e *cohort.Error
	if !errors.As(err, &e) || !strings.Contains(e.Detail, "; ") {
		t.Errorf("%s: the error does not say what to do: %v", r.URL, err)
	}
}

// RendezvousTest.test_unknown_handler.
func TestRendezvousUnknownHandler(t *testing.T) {
	checkRefused(t, request("invalid://"), cohort.NotSupported, "No rendezvous handler for invalid://", "register")
	checkRefused(t, request("INVALID://x"), cohort.NotSupported, "No rendezvous handler for invalid://")
	for _, url := range []string{"", "tcp", "//host:1", "1tcp://h:1", "/tmp/x", "host:29500"} {
		if _, err := NewRegistry().Plan(request(url)); err == nil || !strings.Contains(err.Error(), "No rendezvous handler for ") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// RendezvousTest.test_url_with_node_params.
func TestRendezvousURLWithNodeParams(t *testing.T) {
	for _, url := range []string{
		"file://foo?rank=12&world_size=16", "tcp://h:1?rank=0", "env://?world_size=3", "mine://?rank=1",
	} {
		r := request(url)
		r.Rank, r.WorldSize = 12, 16
		checkRefused(t, r, cohort.InvalidArgument, "The url: "+url+" has node-specific arguments(rank, world_size) already.", "not both")
		r.Rank = cohort.NoRank
		checkRefused(t, r, cohort.InvalidArgument, "has node-specific arguments")
		r.Rank, r.WorldSize = 12, NoWorldSize
		checkRefused(t, r, cohort.InvalidArgument, "has node-specific arguments")
	}
	r := request("tcp://h:1?use_libuv=0")
	r.Rank, r.WorldSize = 12, 16
	plan, err := NewRegistry().Plan(r)
	if err != nil || plan.Rank != 12 || plan.WorldSize != 16 {
		t.Errorf("plan %+v, %v", plan, err)
	}
}

// RendezvousFileTest.test_common_errors.
func TestRendezvousFileCommonErrors(t *testing.T) {
	const start = "Error initializing torch.distributed using file:// rendezvous: "
	checkRefused(t, request("file://?rank=0&world_size=1"), cohort.InvalidArgument, start+"path missing", "file:///")
	checkRefused(t, request("file:///tmp/foo?world_size=1"), cohort.InvalidArgument, start+"rank parameter missing", "rank=")
	checkRefused(t, request("file:///tmp/foo?rank=0"), cohort.InvalidArgument, start+"world size parameter missing", "world_size=")
	checkRefused(t, request("file://foo?rank=0&world_size=1"), cohort.InvalidArgument, "path missing", `"foo" was read as a host name`)
	checkRefused(t, request("file:///tmp/foo?rank=1&world_size=1"), cohort.InvalidArgument, "rank 1 is not in a world of 1")
}

// RendezvousTCPTest.test_common_errors.
func TestRendezvousTCPCommonErrors(t *testing.T) {
	const start = "Error initializing torch.distributed using tcp:// rendezvous: "
	for _, c := range []struct{ url, words string }{
		{"tcp://127.0.0.1?rank=0&world_size=1", start + "port number missing"},
		{"tcp://127.0.0.1:0?rank=0&world_size=2", start + "port number missing"},
		{"tcp://127.0.0.1:0?rank=1&world_size=2", start + "port number missing"},
		{"tcp://127.0.0.1:?rank=0&world_size=1", start + "port number missing"},
		{"tcp://127.0.0.1:23456?world_size=1", start + "rank parameter missing"},
		{"tcp://127.0.0.1:23456", start + "rank parameter missing"},
		{"tcp://127.0.0.1:23456?rank=0", start + "world size parameter missing"},
		{"tcp://:23456?rank=0&world_size=1", start + "host name missing"},
		{"tcp://h:99999?rank=0&world_size=1", "Port out of range 0-65535"},
		{"tcp://h:99999999999999999999?rank=0&world_size=1", "Port out of range 0-65535"},
		{"tcp://h:abc?rank=0&world_size=1", "Port could not be cast to integer value as 'abc'"},
		{"tcp://h:-1?rank=0&world_size=1", "Port could not be cast to integer value as '-1'"},
		{"tcp://::1:29500?rank=0&world_size=1", "Port could not be cast to integer value as ':1:29500'"},
		{"tcp://[::1?rank=0&world_size=1", "Invalid IPv6 URL"},
		{"tcp://::1]:29500?rank=0&world_size=1", "Invalid IPv6 URL"},
		{"tcp://[::1]29500?rank=0&world_size=1", "Invalid IPv6 URL"},
		{"tcp://h:1?rank", `query item "rank" has no "="`},
		{"tcp://h:1?rank=0&world_size=1&x", `query item "x" has no "="`},
		{"tcp://h:1?rank=zero&world_size=1", "rank: invalid literal for int() with base 10: 'zero'"},
		{"tcp://h:1?rank=&world_size=1", "rank: invalid literal for int() with base 10: ''"},
		{"tcp://h:1?rank=0&world_size=two", "world_size: invalid literal for int() with base 10: 'two'"},
		{"tcp://h:1?rank=0&world_size=99999999999", "world_size: invalid literal"},
		{"tcp://h:1?rank=0&world_size=0", "TCPStore world size cannot be 0"},
		{"tcp://h:1?rank=-2&world_size=2", "rank -2 is negative"},
		{"tcp://h:1?rank=2&world_size=2", "rank 2 is not in a world of 2; ranks go from 0 to 1"},
		{"tcp://h:1?x=" + strings.Repeat("y", maxURL), "the limit is 8192"},
	} {
		checkRefused(t, request(c.url), cohort.InvalidArgument, c.words)
	}
}

func TestRendezvousEnvCommonErrors(t *testing.T) {
	const start = "Error initializing torch.distributed using env:// rendezvous: environment variable "
	whole := []string{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=29500"}
	for i, word := range whole {
		name, _, _ := strings.Cut(word, "=")
		rest := append(append([]string{}, whole[:i]...), whole[i+1:]...)
		checkRefused(t, request("env://", rest...), cohort.InvalidArgument, start+name+" expected, but not set", "set it to")
		checkRefused(t, request("env://", append(rest, name+"=")...), cohort.InvalidArgument, start+name+" expected, but not set")
	}
	with := func(words ...string) Request { return request("env://", append(words, whole...)...) }
	checkRefused(t, with("MASTER_PORT=65536"), cohort.InvalidArgument, "port must have value from 0 to 65535 but was 65536.")
	checkRefused(t, with("MASTER_PORT=-1"), cohort.InvalidArgument, "port must have value from 0 to 65535 but was -1.")
	checkRefused(t, with("MASTER_PORT=http"), cohort.InvalidArgument, "MASTER_PORT: invalid literal for int()")
	checkRefused(t, with("MASTER_PORT=0"), cohort.InvalidArgument, "port number missing")
	checkRefused(t, with("RANK=x"), cohort.InvalidArgument, "rank: invalid literal for int()")
	checkRefused(t, with("RANK=2"), cohort.InvalidArgument, "rank 2 is not in a world of 2")
	checkRefused(t, with("WORLD_SIZE=0"), cohort.InvalidArgument, "world size cannot be 0")
	checkRefused(t, with(EnvRestartCount+"="+strings.Repeat("9", 65)), cohort.InvalidArgument, EnvRestartCount)
	open := with("RANK=one")
	open.Open = true
	checkRefused(t, open, cohort.InvalidArgument, "RANK: invalid literal for int()")
}

func TestPlan(t *testing.T) {
	env := []string{"RANK=1", "WORLD_SIZE=4", "MASTER_ADDR=Node0", "MASTER_PORT= 29500 "}
	for _, c := range []struct {
		name string
		r    Request
		want Plan
	}{
		{
			"tcp master", request("tcp://Node0.example:23456?rank=0&world_size=2"),
			Plan{Rank: 0, WorldSize: 2, Host: "node0.example", Port: 23456, Master: true},
		},
		{"tcp client", request("TCP://10.0.0.1:1?rank=1&world_size=2"), Plan{Rank: 1, WorldSize: 2, Host: "10.0.0.1", Port: 1}},
		{"ipv6", request("tcp://[FE80::1]:1?rank=1&world_size=2"), Plan{Rank: 1, WorldSize: 2, Host: "fe80::1", Port: 1}},
		{"user part is ignored", request("tcp://me:pw@h:1?rank=1&world_size=2"), Plan{Rank: 1, WorldSize: 2, Host: "h", Port: 1}},
		{"open world", request("tcp://h:1?rank=1&world_size=-1"), Plan{Rank: 1, WorldSize: NoWorldSize, Host: "h", Port: 1}},
		{
			"last of a repeated key wins", request("tcp://h:1?rank=1&world_size=2&rank=0"),
			Plan{WorldSize: 2, Host: "h", Port: 1, Master: true},
		},
		{"a=b=c is b", request("tcp://h:1?rank=1=7&world_size=2"), Plan{Rank: 1, WorldSize: 2, Host: "h", Port: 1}},
		{"fragment is cut", request("tcp://h:1?rank=1&world_size=2#rank=0"), Plan{Rank: 1, WorldSize: 2, Host: "h", Port: 1}},
		{"line ends and spaces", request(" tcp://h:1?rank=1&world_size=2\n"), Plan{Rank: 1, WorldSize: 2, Host: "h", Port: 1}},
		{
			"the choice of a server has no effect", request("tcp://h:1?rank=1&world_size=2&use_libuv=0", "USE_LIBUV=x"),
			Plan{Rank: 1, WorldSize: 2, Host: "h", Port: 1},
		},
		{"file", request("file:///tmp/a%20b?rank=0&world_size=2"), Plan{WorldSize: 2, Path: "/tmp/a%20b"}},
		{"file, four slashes", request("file:////tmp/x?rank=0&world_size=2"), Plan{WorldSize: 2, Path: "//tmp/x"}},
		{"file, one slash", request("file:/tmp/x?rank=0&world_size=2"), Plan{WorldSize: 2, Path: "/tmp/x"}},
		{"env", request("env://", env...), Plan{Rank: 1, WorldSize: 4, Host: "Node0", Port: 29500}},
		{"env without slashes", request("env:", env...), Plan{Rank: 1, WorldSize: 4, Host: "Node0", Port: 29500}},
		{"env, query wins", request("env://?rank=0&world_size=2", env...), Plan{WorldSize: 2, Host: "Node0", Port: 29500, Master: true}},
		{
			"agent store", request("env://?rank=0", append(env, EnvUseAgentStore+"=True", EnvRestartCount+"=3")...),
			Plan{WorldSize: 4, Host: "Node0", Port: 29500, AgentStore: true, Attempt: "3"},
		},
		{
			"tcp to the launcher's store", request("tcp://h:1?rank=0&world_size=2", "MASTER_ADDR=h", "MASTER_PORT=1",
				EnvUseAgentStore+"=True"),
			Plan{WorldSize: 2, Host: "h", Port: 1, AgentStore: true},
		},
		{
			"tcp to another store than the launcher's",
			request("tcp://h:1?rank=0&world_size=2", "MASTER_ADDR=h", "MASTER_PORT=2", EnvUseAgentStore+"=True"),
			Plan{WorldSize: 2, Host: "h", Port: 1, AgentStore: true, Master: true},
		},
		{
			"agent store is exactly True", request("env://?rank=0", append(env, EnvUseAgentStore+"=true")...),
			Plan{WorldSize: 4, Host: "Node0", Port: 29500, Master: true},
		},
		{
			"port 0 for one", request("env://", append([]string{"MASTER_PORT=0", "RANK=0", "WORLD_SIZE=1"}, env...)...),
			Plan{WorldSize: 1, Host: "Node0", Master: true},
		},
		{
			"open env without sizes",
			Request{URL: "env://", Rank: 3, WorldSize: NoWorldSize, Open: true, Env: environment(env[2:]...)},
			Plan{Rank: 3, WorldSize: NoWorldSize, Host: "Node0", Port: 29500},
		},
		{
			"open env, the environment wins",
			Request{URL: "env://", Rank: 3, WorldSize: NoWorldSize, Open: true, Env: environment(env...)},
			Plan{Rank: 1, WorldSize: 4, Host: "Node0", Port: 29500},
		},
		{
			"open tcp",
			Request{URL: "tcp://h:1", Rank: 3, WorldSize: NoWorldSize, Open: true, Env: environment(env...)},
			Plan{Rank: 3, WorldSize: NoWorldSize, Host: "h", Port: 1},
		},
		{"own scheme", request("mine+x://H:7/p?rank=1"), Plan{Rank: 1, WorldSize: NoWorldSize, Host: "h", Port: 7, Path: "/p"}},
		{"own scheme, nothing given", request("mine+x://"), Plan{Rank: cohort.NoRank, WorldSize: NoWorldSize}},
	} {
		t.Run(c.name, func(t *testing.T) {
			registry := NewRegistry()
			if err := registry.Register("mine+x", func(context.Context, Call) (*Member, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			got, err := registry.Plan(c.r)
			if err != nil {
				t.Fatal(err)
			}
			if got.URL.String() != c.r.URL {
				t.Errorf("the plan's url is %q", got.URL)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(Plan{}, "URL")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPlanAddr(t *testing.T) {
	if got := (Plan{Host: "fe80::1", Port: 5}).Addr(); got != "[fe80::1]:5" {
		t.Error(got)
	}
}

func TestRegistry(t *testing.T) {
	registry := NewRegistry()
	none := func(context.Context, Call) (*Member, error) { return nil, nil }
	if err := registry.Register("mine", none); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"mine", "tcp", "env", "file"} {
		err := registry.Register(scheme, none)
		if !errors.Is(err, cohort.AlreadyExists) ||
			!strings.Contains(err.Error(), "Rendezvous handler for "+scheme+":// already registered") {
			t.Errorf("%s: %v", scheme, err)
		}
	}
	for _, scheme := range []string{"", "Mine", "1x", "a b", "x://"} {
		if err := registry.Register(scheme, none); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%q: %v", scheme, err)
		}
	}
	if err := registry.Register("other", nil); !errors.Is(err, cohort.InvalidArgument) {
		t.Errorf("nil handler: %v", err)
	}
	if diff := cmp.Diff([]string{"env", "file", "mine", "tcp"}, registry.Schemes()); diff != "" {
		t.Error(diff)
	}
	if _, err := NewRegistry().Plan(request("mine://")); !errors.Is(err, cohort.NotSupported) {
		t.Errorf("registries are not separate: %v", err)
	}
}

func FuzzPlan(f *testing.F) {
	for _, url := range []string{
		"env://", "tcp://h:1?rank=0&world_size=2", "tcp://[::1]:5?rank=1=2&world_size=-1", "file:///x?rank=0&world_size=1",
		"tcp://a@b:1?rank", "x:y?z=1#", "tcp://[", "file://h", "tcp://h:99999",
	} {
		f.Add(url, 0, 2, false)
	}
	f.Fuzz(func(t *testing.T, url string, rank, size int, open bool) {
		r := request(url, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=1")
		r.Rank, r.WorldSize, r.Open = cohort.Rank(rank), size, open
		plan, err := NewRegistry().Plan(r)
		if err != nil {
			if cohort.CodeOf(err) == cohort.Unknown || len(err.Error()) > 3*maxURL {
				t.Fatalf("a poor error: %v", err)
			}
			return
		}
		if plan.Rank < 0 || plan.WorldSize == 0 || plan.WorldSize < NoWorldSize || plan.WorldSize > 0 && int(plan.Rank) >= plan.WorldSize {
			t.Fatalf("an impossible node: %+v", plan)
		}
		if plan.URL.Scheme == "tcp" && (plan.Host == "" || plan.Port < 1 || plan.Port > 65535) {
			t.Fatalf("an impossible address: %+v", plan)
		}
	})
}
