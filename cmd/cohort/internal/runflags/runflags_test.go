// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/launch"
)

func system(env map[string]string) System {
	return System{Lookup: func(name string) (string, bool) {
		v, found := env[name]
		return v, found
	}, GPUs: func() int { return 3 }, Devices: func(_ context.Context, python, kind string) (int, error) {
		if kind != "xpu" || python != "" {
			return 0, fmt.Errorf("%q knows no %s", python, kind)
		}
		return 6, nil
	}}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args string
		env  map[string]string
		want func(Options) any
		is   any
	}{
		"dashes":                 {"--nproc-per-node 4 t.py", nil, workers, 4},
		"underscores":            {"--nproc_per_node=4 t.py", nil, workers, 4},
		"1.13's prefix":          {"--nproc 4 t.py", nil, workers, 4},
		"2.x's prefix":           {"--nproc_per 4 t.py", nil, workers, 4},
		"variable":               {"t.py", map[string]string{"PET_NPROC_PER_NODE": "4"}, workers, 4},
		"command line wins":      {"--nproc-per-node 5 t.py", map[string]string{"PET_NPROC_PER_NODE": "4"}, workers, 5},
		"gpus":                   {"--nproc-per-node gpu t.py", nil, workers, 3},
		"auto":                   {"--nproc-per-node auto t.py", nil, workers, 3},
		"the program's own":      {"t.py --nproc-per-node 5 -- x", nil, theProgram, []string{"t.py", "--nproc-per-node", "5", "--", "x"}},
		"after two dashes":       {"-- --weird -x", nil, theProgram, []string{"--weird", "-x"}},
		"joined short":           {"-t3 t.py", nil, tee, launch.StdMap{All: 3}},
		"short":                  {"-t 3 t.py", nil, tee, launch.StdMap{All: 3}},
		"one-letter prefix":      {"--t 1 t.py", nil, tee, launch.StdMap{All: 1}},
		"single ranks":           {"--tee 0:1,12:3 t.py", nil, tee, launch.StdMap{Ranks: map[int]launch.Std{0: 1, 12: 3}}},
		"module":                 {"-m pkg.train --x", nil, how, launch.Module},
		"module by variable":     {"t", map[string]string{"PET_MODULE": "1"}, how, launch.Module},
		"another integer":        {"t", map[string]string{"PET_MODULE": " +17 "}, how, launch.Module},
		"a negative integer":     {"t", map[string]string{"PET_MODULE": "-1"}, how, launch.Module},
		"a large integer":        {"t", map[string]string{"PET_MODULE": "99999999999999999999"}, how, launch.Module},
		"zeroes":                 {"t", map[string]string{"PET_MODULE": "000"}, how, launch.Auto},
		"another device":         {"--nproc-per-node xpu t.py", nil, workers, 6},
		"events":                 {"--event-log-handler console t.py", nil, func(o Options) any { return o.Events }, true},
		"events of nothing":      {"--event-log-handler dynamic_rendezvous t.py", nil, func(o Options) any { return o.Events }, false},
		"binding":                {"--numa-binding core-complex t.py", nil, func(o Options) any { return o.NUMABinding }, "core-complex"},
		"backend of standalone":  {"--standalone t.py", nil, func(o Options) any { return o.Backend }, "c10d"},
		"no module":              {"t", map[string]string{"PET_MODULE": "0"}, how, launch.Auto},
		"no python":              {"--no-python t.py", nil, how, launch.Executable},
		"prefix of standalone":   {"--stand --nproc_per_node 2 t.py", nil, workers, 2},
		"a prefix of torchrun's": {"--mod t", nil, how, launch.Module},
		"launch's option":        {"--use-env --nproc-per-node 2 t.py", nil, workers, 2},
		"launch's, underscore":   {"--use_env --pass-local-rank t.py", nil, func(o Options) any { return o.PassLocalRank }, false},
		"launch's default":       {"--pass-local-rank t.py", nil, func(o Options) any { return o.PassLocalRank }, true},
		"run path":               {"--run-path t.py", nil, how, launch.RunPath},
		"run path wins":          {"-m --no-python --run_path t.py", nil, how, launch.RunPath},
		"run path by variable":   {"t.py", map[string]string{"PET_RUN_PATH": "1"}, how, launch.RunPath},
		"restarts":               {"--max-restarts 3 t.py", nil, func(o Options) any { return o.MaxRestarts }, 3},
		"grace":                  {"--shutdown-timeout 1.5 t.py", nil, func(o Options) any { return o.Grace }, 1500 * time.Millisecond},
		"a time with a unit":     {"--hang-timeout 2m t.py", nil, func(o Options) any { return o.Hang.Timeout }, 2 * time.Minute},
		"grace by variable": {
			"t.py",
			map[string]string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"},
			func(o Options) any { return o.Grace }, 7 * time.Second,
		},
		"filters": {
			"--duplicate-stdout-filters a,b,,c,d t.py", nil,
			func(o Options) any { return o.Logs.StdoutFilters },
			[]string{"a", "b,c", "d"},
		},
		"id":                     {"--rdzv-id job7 t.py", nil, func(o Options) any { return o.RunID }, "job7"},
		"standalone has its own": {"--standalone --rdzv-id job7 t.py", nil, func(o Options) any { return o.RunID }, ""},
		"shown": {
			"--nproc 3 --local-ranks-filter 0,2 t.py", nil, func(o Options) any { return o.Logs.ShowRanks },
			[]int{0, 2},
		},
		"static timeout": {"--nnodes 2 --node-rank 1 --master-addr a --rdzv-conf timeout=5 t.py", nil, join, 5 * time.Second},
		"c10d's timeout": {"--nnodes 2 --rdzv-endpoint a --rdzv-conf timeout=5,join_timeout=7 t.py", nil, join, 7 * time.Second},
		"local address": {
			"--nnodes 2 --rdzv-endpoint a --local_addr 10.0.0.7 t.py", nil,
			func(o Options) any { return o.Nodes.LocalAddr }, "10.0.0.7",
		},
		"report":                 {"--report r.json t.py", nil, shortReport, false},
		"short report":           {"--report r.txt --report-form short t.py", nil, shortReport, true},
		"termination log":        {"--report /dev/termination-log t.py", nil, shortReport, true},
		"the same as JSON":       {"--report /dev/termination-log --report-form json t.py", nil, shortReport, false},
		"exit code":              {"--exit-code first t.py", nil, func(o Options) any { return o.FirstCode }, true},
		"no waiting for culprit": {"--culprit-timeout 0 t.py", nil, func(o Options) any { return o.Linger }, time.Duration(1)},
	} {
		o, err := Parse(t.Context(), strings.Fields(c.args), system(c.env))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := c.want(o); !reflect.DeepEqual(got, c.is) {
			t.Errorf("%s: %v, want %v", name, got, c.is)
		}
	}
}

func shortReport(o Options) any { return o.ShortReport }
func workers(o Options) any     { return o.Workers }
func theProgram(o Options) any  { return o.Program }
func tee(o Options) any         { return o.Logs.Tee }
func how(o Options) any         { return o.How }
func join(o Options) any        { return o.Nodes.JoinTimeout }

func TestRefusals(t *testing.T) {
	t.Parallel()
	for args, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"":                         {nil, "the program is missing"},
		"--nproc-per-node":         {nil, "--nproc-per-node needs a value"},
		"--nproc-per-node 0 t.py":  {nil, "at least 1"},
		"--nproc-per-node x t.py":  {nil, "a number, auto, cpu, gpu or a device of PyTorch; \"\" knows no x"},
		"--nproc-per-node 2x t.py": {nil, "a number, auto, cpu, gpu or a device of PyTorch"},
		"--nproc-per-node hpu --python /o/python t.py": {nil, `"/o/python" knows no hpu`},
		"--numa-binding near t.py": {
			nil,
			"--numa-binding near: it must be one of node, socket, exclusive, core-complex",
		},
		"--event-log-handler mine t.py":   {nil, "not supported"},
		"--rdzv t.py":                     {nil, "--rdzv could be --rdzv-backend or --rdzv-conf"},
		"--max-restart-s 1 t.py":          {nil, "did you mean --max-restarts?"},
		"--frobnicate t.py":               {nil, "unknown option --frobnicate"},
		"-x t.py":                         {nil, "unknown option -x"},
		"--standalone=1 t.py":             {nil, "takes no value"},
		"--pass-local-rank --no-python t": {nil, "exclude each other"},
		"--nprocs 2 t.py":                 {nil, "unknown option --nprocs; did you mean --nproc-per-node?"},
		"--master_address x t.py":         {nil, "unknown option --master-address; did you mean --master-addr?"},
		"--num_processes 2 t.py":          {nil, "unknown option --num-processes; did you mean --nproc-per-node?"},
		"--world-size 2 t.py":             {nil, "the world has as many ranks as --nnodes times --nproc-per-node"},
		"--world_size=2 t.py":             {nil, "the world has as many ranks as --nnodes times --nproc-per-node"},
		"--num-nodes 2 t.py":              {nil, "did you mean --nnodes?"},
		"--machine_rank 2 t.py":           {nil, "did you mean --node-rank?"},
		"--main_process_port 2 t.py":      {nil, "did you mean --master-port?"},
		"--logdir x t.py":                 {nil, "did you mean --log-dir?"},
		"-n 4 t.py":                       {nil, "unknown option -n; did you mean --nproc-per-node?"},
		"-np 4 t.py":                      {nil, "unknown option -n; did you mean --nproc-per-node?"},
		"--logs-specs x t.py":             {nil, "not supported"},
		"--rdzv-backend etcd t.py":        {nil, "not supported"},
		"--rdzv-backend mine t.py":        {nil, "needs Python inside the launcher"},
		"--rdzv-conf join t.py":           {nil, "is not KEY=VALUE"},
		"-m --no-python t":                {nil, "exclude each other"},
		"--nnodes 2 --master-addr a --rdzv-conf timeout=x t.py": {nil, "--rdzv-conf timeout"},
		"--nnodes 2:1 t.py":            {nil, "MIN must be at least 1"},
		"--nnodes two t.py":            {nil, "N or MIN:MAX"},
		"--tee 4 t.py":                 {nil, "--tee"},
		"--redirects a:1 t.py":         {nil, "is not RANK:VALUE"},
		"--shutdown-timeout soon t.py": {nil, "a number of seconds"},
		"--local-ranks-filter 1 t.py":  {nil, "is not a local rank"},
		"--rdzv-id --standalone t.py":  {nil, "--rdzv-id needs a value"},
		"--start-method thread t.py":   {nil, "spawn, fork or forkserver"},
		"--nnodes 2 --rdzv-endpoint a --rdzv-conf is_host=maybe t.py": {
			nil,
			"--rdzv-conf is_host=maybe: it must be 1 or 0",
		},
		"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint /tmp/x --rdzv-conf store_type=file t.py": {nil, "store_type=file is not supported"},
		"--report-form long t.py":  {nil, "json or short"},
		"--exit-code 7 t.py":       {nil, "1 or first"},
		"--master-port 70000 t.py": {nil, "up to 65535"},
		"t.py":                     {map[string]string{"PET_STANDALONE": "yes"}, "PET_STANDALONE=yes: it must be 1 or 0"},
		"a.py": {
			map[string]string{"PET_NPROC_PER_NODE": "two"},
			"PET_NPROC_PER_NODE two: it must be a number, auto, cpu, gpu",
		},
		"c.py": {map[string]string{"PET_REDIRECTS": "9"}, "PET_REDIRECTS: "},
		"d.py": {
			map[string]string{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"},
			"TORCH_ELASTIC_SHUTDOWN_TIMEOUT soon: it must be a number",
		},
		"e.py": {
			map[string]string{"PET_MASTER_PORT": "high", "PET_NNODES": "0"},
			"PET_NNODES 0: MIN must be at least 1 and at most MAX\nPET_MASTER_PORT high: it must be",
		},
		"--nproc-per-node x f.py": {map[string]string{"PET_NPROC_PER_NODE": "two"}, "--nproc-per-node x: it must be"},
	} {
		_, err := Parse(t.Context(), strings.Fields(args), system(c.env))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want %q", args, err, c.want)
		}
	}
}

// TestRange: N is MIN and MAX, and a third number is a mistake.
func TestRange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]int{"1": {1, 1}, "2:20": {2, 20}, "7:7": {7, 7}} {
		if least, most, err := Range("nnodes", text); err != nil || least != want[0] || most != want[1] {
			t.Errorf("%s: %d to %d, %v", text, least, most, err)
		}
	}
	for _, text := range []string{"", "2:20:30", "2:", ":2", "20:2", "0", "-1:1", "a"} {
		if _, _, err := Range("nnodes", text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// TestDeviceNames: PyTorch is asked only for what can be the name of a device, and only where it can be asked.
func TestDeviceNames(t *testing.T) {
	t.Parallel()
	const want = "it must be a number, auto, cpu, gpu or a device of PyTorch"
	for _, name := range []string{"4x", "-1x", "2.5", "gpu:0", "GPU", "four-each", "1e3"} {
		sys := system(nil)
		sys.Devices = func(context.Context, string, string) (int, error) {
			t.Errorf("PyTorch is asked for %q", name)
			return 0, nil
		}
		if _, err := Parse(t.Context(), []string{"--nproc-per-node=" + name, "t.py"}, sys); err == nil ||
			!strings.HasSuffix(err.Error(), name+": "+want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	sys := system(nil)
	sys.Devices = nil
	if _, err := Parse(t.Context(), []string{"--nproc-per-node", "xpu", "t.py"}, sys); err == nil ||
		!strings.HasSuffix(err.Error(), "xpu: "+want) {
		t.Errorf("without PyTorch: %v", err)
	}
}

// TestPrefixesOfTorchrun: what is unique among torchrun's options in 1.13 means the same here.
func TestPrefixesOfTorchrun(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, prefix := range []string{
		"nn", "nproc", "max", "mon", "stand", "start", "mod", "no-p", "red", "te", "role", "log-d",
		"node", "master-p", "ev", "sh",
	} {
		o, err := find(prefix)
		if err != nil {
			t.Errorf("--%s: %v", prefix, err)
		}
		got[prefix] = o.name
	}
	want := map[string]string{
		"nn": "nnodes", "nproc": "nproc-per-node", "max": "max-restarts", "mon": "monitor-interval", "stand": "standalone",
		"start": "start-method",
		"mod":   "module", "no-p": "no-python", "red": "redirects", "te": "tee", "role": "role", "log-d": "log-dir", "node": "node-rank",
		"master-p": "master-port", "ev": "event-log-handler", "sh": "shutdown-timeout",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestFileRefusals: an error about a value of a file names the file, not an option that was not given.
func TestFileRefusals(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"options:\n  nproc_per_node: 3\nroles: [{name: a, program: [true]}]": "--file job.yaml: line 2: options: nproc_per_node: " +
			"the roles say what is run",
		"options: {file: x}\nroles: [{name: a, program: [true]}]": "--file job.yaml: line 1: options: file: the roles " +
			"say what is run",
		"options: {max-restarts: often}\nroles: [{name: a, program: [true]}]": "--file job.yaml: line 1: options: max-restarts " +
			"often: it must be a number",
		"roles: [{name: a, workers: some, program: [true]}]": "--file job.yaml: line 1: role a: workers some: it must be a number, " +
			"auto, cpu, gpu",
	} {
		sys := system(nil)
		sys.ReadFile = func(string) ([]byte, error) { return []byte(text), nil }
		if _, err := Parse(t.Context(), []string{"-f", "job.yaml"}, sys); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
