// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package jobscan finds the jobs on this host, started by cohort, torchrun or by hand, and looks at their ranks from
// outside: Python stacks, the store's waiters, flight recorders, and what the kernel knows.
package jobscan

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

// Job is a job with the ranks that run on this host.
type Job struct {
	// ID is TORCHELASTIC_RUN_ID, or the store's address.
	ID string `json:"id"`
	// Store is the address of its store: MASTER_ADDR:MASTER_PORT, unless that is a gateway to it, which is asked then.
	Store   string `json:"store"`
	Gateway string `json:"-"`
	World   int    `json:"world"`
	// Local says that all ranks run on this host: their number says so, or the store has an address that no other host reaches.
	Local bool   `json:"local"`
	Ranks []Rank `json:"ranks"`
	// Orphans are processes that run the same program as a rank that this job lacks, and use another store.
	Orphans []verdict.Stray `json:"strays,omitempty"`
	// Notes say what is not certain about it.
	Notes []string `json:"notes,omitempty"`
}

// Rank is a rank's process.
type Rank struct {
	Rank    int    `json:"rank"`
	PID     int    `json:"pid"`
	Command string `json:"command"`
	// Restart is TORCHELASTIC_RESTART_COUNT.
	Restart int `json:"restart"`
	env     map[string]string
	folder  string // that it was started in, "" if it is not known
	as      asker  // nil: this process may ask itself
}

// process is what is read of a process of this host.
type process struct {
	pid, parent int
	env         map[string]string
	command     string
	folder      string
}

// Find returns the jobs on this host, as far as this user may see them, in the order of their names; last those of programs that start
// their ranks themselves.
func Find(ctx context.Context) []Job {
	known := processes("/proc")
	all := group(known)
	findOrphans(ctx, all)
	return append(all, findSpawned(ctx, "/proc", known)...)
}

// processes reads those that have a rank.
func processes(proc string) map[int]process {
	all := map[int]process{}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return all
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile(filepath.Join(proc, e.Name(), "environ")) //nolint:gosec // a file of the kernel
		if err != nil || !bytes.Contains(environ, []byte("RANK=")) {
			continue
		}
		p := process{pid: pid, env: parseEnviron(environ)}
		if _, err := strconv.Atoi(p.env["RANK"]); err != nil || p.env["WORLD_SIZE"] == "" {
			continue
		}
		p.parent, _ = stat(proc, pid)
		cmdline, _ := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline")) //nolint:gosec // a file of the kernel
		p.folder, _ = os.Readlink(filepath.Join(proc, e.Name(), "cwd"))
		p.command = strings.TrimSpace(strings.ReplaceAll(string(cmdline[:min(len(cmdline), 200)]), "\x00", " "))
		all[pid] = p
	}
	return all
}

func parseEnviron(environ []byte) map[string]string {
	env := map[string]string{}
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if name, value, found := bytes.Cut(v, []byte("=")); found && wanted[string(name)] {
			env[string(name)] = string(value)
		}
	}
	store := strings.TrimPrefix(env[storegate.EnvStore], storegate.OverTLS)
	if host, port, err := net.SplitHostPort(store); err == nil { // MASTER_ADDR leads to a gateway to it
		env[gateway] = storeIn(env)
		env["MASTER_ADDR"], env["MASTER_PORT"] = host, port
	}
	return env
}

// gateway is where a rank's environment has the address of its gateway to the store. No variable has this name.
const gateway = "gateway"

func storeIn(env map[string]string) string { return env["MASTER_ADDR"] + ":" + env["MASTER_PORT"] }

// asked is where the store of a job is asked.
func (j *Job) asked() string { return cmp.Or(j.Gateway, j.Store) }

// Describe returns a rank whose process is known.
func Describe(rank, pid int) Rank {
	environ, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ")) // without it less is known
	return Rank{Rank: rank, PID: pid, env: parseEnviron(environ)}
}

// envMember is set for members of a group whose members change: elastic.EnvMember, which a package of this layer must not import.
const envMember = "COHORT_MEMBER"

var wanted = map[string]bool{
	"RANK": true, "WORLD_SIZE": true, "LOCAL_WORLD_SIZE": true, "MASTER_ADDR": true, "MASTER_PORT": true, "TORCHELASTIC_RUN_ID": true,
	"TORCHELASTIC_RESTART_COUNT": true, "TORCHELASTIC_USE_AGENT_STORE": true, "TORCH_FR_DUMP_TEMP_FILE": true,
	"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": true, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": true,
	"TORCH_WORKER_SERVER_SOCKET": true, "NCCL_RAS_ADDR": true,
	envMember: true, storegate.EnvStore: true, controlsock.EnvRun: true, controlsock.EnvDump: true,
}

// jobKey is equal for the ranks of a job.
func jobKey(env map[string]string) string {
	host := env["MASTER_ADDR"]
	if loopback(host) {
		host = "localhost"
	}
	return host + ":" + env["MASTER_PORT"] + " " + env["TORCHELASTIC_RUN_ID"]
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// group sorts processes into jobs. Children of a rank inherit its environment: the rank is the topmost.
func group(all map[int]process) []Job {
	jobs := map[string]*Job{}
	for _, p := range all {
		key := jobKey(p.env)
		if parent, found := all[p.parent]; found && parent.env["RANK"] == p.env["RANK"] && jobKey(parent.env) == key {
			continue
		}
		j := jobs[key]
		if j == nil {
			j = &Job{ID: p.env["TORCHELASTIC_RUN_ID"]}
			jobs[key] = j
		}
		r := Rank{PID: p.pid, Command: p.command, env: p.env, folder: p.folder}
		r.Rank, _ = strconv.Atoi(p.env["RANK"])
		r.Restart, _ = strconv.Atoi(p.env["TORCHELASTIC_RESTART_COUNT"])
		j.Ranks = append(j.Ranks, r)
	}
	var out []Job
	for _, j := range jobs {
		slices.SortFunc(j.Ranks, func(a, b Rank) int {
			if a.Rank != b.Rank {
				return a.Rank - b.Rank
			}
			return a.PID - b.PID
		})
		first := j.Ranks[0].env
		j.Store, j.Gateway = storeIn(first), first[gateway]
		if j.ID == "" || j.ID == "none" {
			j.ID = j.Store
		}
		j.World, _ = strconv.Atoi(first["WORLD_SIZE"])
		j.Local = first["LOCAL_WORLD_SIZE"] == first["WORLD_SIZE"] || loopback(first["MASTER_ADDR"])
		out = append(out, *j)
	}
	slices.SortFunc(out, func(a, b Job) int { return strings.Compare(a.ID+a.Store, b.ID+b.Store) })
	return out
}

// namesTime bounds the resolution of all names.
const namesTime = time.Second

// findOrphans looks for ranks of one program that have exited up in different jobs because they use different stores.
func findOrphans(ctx context.Context, all []Job) {
	ctx, cancel := context.WithTimeout(ctx, namesTime)
	defer cancel()
	n := names{}
	for i := range all {
		for k := range all {
			if i != k && parted(&all[i], &all[k]) && !n.sameServer(ctx, all[i].Store, all[k].Store) {
				for _, r := range all[k].Ranks {
					all[i].Orphans = append(all[i].Orphans, verdict.Stray{Rank: r.Rank, PID: r.PID, Store: all[k].Store})
				}
			}
		}
	}
}

// parted reports whether two jobs look like parts of one: they run the same command in the same folder and want the same number of
// ranks, each lacks some, and none is in both.
func parted(a, b *Job) bool {
	first, second := a.Ranks[0], b.Ranks[0]
	if a.ID != a.Store || b.ID != b.Store || a.World != b.World || first.Command != second.Command ||
		first.folder != second.folder || first.folder == "" {
		return false
	}
	numbers := map[int]bool{}
	for _, r := range slices.Concat(a.Ranks, b.Ranks) {
		numbers[r.Rank] = true
	}
	return len(numbers) == len(a.Ranks)+len(b.Ranks) && len(numbers) <= a.World
}

// names are the addresses of hosts, each asked for once.
type names map[string][]string

func (n names) addresses(ctx context.Context, host string) []string {
	if _, known := n[host]; !known {
		n[host], _ = net.DefaultResolver.LookupHost(ctx, host) // none of one that does not resolve
	}
	return n[host]
}

// sameServer reports whether two addresses mean the same server under different names, or may do so: there was no time to ask.
func (n names) sameServer(ctx context.Context, a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB {
		return false
	}
	addrsA, addrsB := n.addresses(ctx, hostA), n.addresses(ctx, hostB)
	unknown := ctx.Err() != nil && (addrsA == nil || addrsB == nil)
	return unknown || slices.ContainsFunc(addrsA, func(addr string) bool { return slices.Contains(addrsB, addr) })
}
