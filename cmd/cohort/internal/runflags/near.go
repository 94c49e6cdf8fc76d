// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package runflags

// elsewhere are options of other launchers, and guesses, with what takes their place here.
var elsewhere = map[string]string{
	"n":                 "nproc-per-node",
	"np":                "nproc-per-node",
	"nprocs":            "nproc-per-node",
	"num-procs":         "nproc-per-node",
	"num-processes":     "nproc-per-node",
	"num-workers":       "nproc-per-node",
	"workers":           "nproc-per-node",
	"ranks":             "nproc-per-node",
	"gpus":              "nproc-per-node",
	"ngpus":             "nproc-per-node",
	"num-gpus":          "nproc-per-node",
	"ngpus-per-node":    "nproc-per-node",
	"gpus-per-node":     "nproc-per-node",
	"ntasks-per-node":   "nproc-per-node",
	"nodes":             "nnodes",
	"num-nodes":         "nnodes",
	"num-machines":      "nnodes",
	"rank":              "node-rank",
	"machine-rank":      "node-rank",
	"group-rank":        "node-rank",
	"main-process-ip":   "master-addr",
	"master-ip":         "master-addr",
	"master-address":    "master-addr",
	"master-host":       "master-addr",
	"main-process-port": "master-port",
	"port":              "master-port",
	"endpoint":          "rdzv-endpoint",
	"rdzv-addr":         "rdzv-endpoint",
	"job-id":            "rdzv-id",
	"restarts":          "max-restarts",
	"retries":           "max-restarts",
	"max-retries":       "max-restarts",
	"dryrun":            "dry-run",
	"output-dir":        "log-dir",
	"kill-timeout":      "shutdown-timeout",
	"local-rank":        "pass-local-rank",
}

// near suggests an option for one that does not exist.
func near(name string) string {
	if name == "world-size" {
		return "; the world has as many ranks as --nnodes times --nproc-per-node"
	}
	best, least := elsewhere[name], 3
	if best == "" {
		for _, o := range options {
			if d := distance(o.name, name); d < least && d < len(name) {
				best, least = o.name, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean --" + best + "?"
}

// distance is the number of letters to change, add or remove.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost = 1 + min(last, row[j], row[j+1])
			}
			last, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
