// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"net"
	"strconv"

	"github.com/cohort-dist/cohort"
)

// Names of the environment variables that PyTorch and its launcher use.
const (
	EnvRank          = "RANK"
	EnvWorldSize     = "WORLD_SIZE"
	EnvMasterAddr    = "MASTER_ADDR"
	EnvMasterPort    = "MASTER_PORT"
	EnvUseAgentStore = "TORCHELASTIC_USE_AGENT_STORE"
	EnvRestartCount  = "TORCHELASTIC_RESTART_COUNT"
)

// NoWorldSize is the size of an open world, one that processes join and leave as they like.
const NoWorldSize = -1

// Request is what the caller knows before any URL is read.
type Request struct {
	// URL is the init method, such as "env://" or "tcp://host:29500?rank=0&world_size=2".
	URL string
	// Rank and WorldSize are arguments beside the URL: cohort.NoRank and NoWorldSize when not given.
	Rank      cohort.Rank
	WorldSize int
	// Open allows a world without a fixed size, as PyTorch's RPC does: a world size that is not given becomes
	// NoWorldSize instead of an error.
	Open bool
	// Env looks an environment variable up; os.LookupEnv outside tests.
	Env func(name string) (string, bool)
}

// Plan says what one process has to do to join. It is a pure function of a [Request]: nothing was opened, resolved or
// dialled to make it.
type Plan struct {
	// URL is the init URL with the rank and world size of the request added to its query.
	URL URL
	// Rank is the rank of this process. A scheme of the user's may leave it cohort.NoRank for its handler to decide.
	Rank cohort.Rank
	// WorldSize is the number of ranks, or NoWorldSize.
	WorldSize int
	// Host and Port are where the TCP store is, for tcp:// and env://.
	Host string
	Port int
	// Master is true for the rank that hosts the TCP store.
	Master bool
	// AgentStore is true when a launcher hosts a store, at MASTER_ADDR and MASTER_PORT. Where this is that store, every rank is a client.
	AgentStore bool
	// Attempt is TORCHELASTIC_RESTART_COUNT: the number of the attempt, "" when it is not set.
	Attempt string
	// Path is the file of file://.
	Path string
	// Warning says in one sentence what is probably not meant, though PyTorch takes it.
	Warning string
}

// Addr is Host and Port as one address, with brackets where IPv6 needs them.
func (p Plan) Addr() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// planner makes a Plan for one scheme.
type planner func(u URL, r Request) (Plan, *problem)

// resolve makes the plan for r. known reports whether a scheme has a handler.
func resolve(r Request, known func(scheme string) bool) (Plan, *problem) {
	u, bad := parseURL(r.URL)
	if bad != nil {
		return Plan{URL: u}, bad
	}
	rank, size := r.Rank, r.WorldSize
	if r.Open && size == NoWorldSize && u.Scheme == "env" {
		// PyTorch's RPC lets the environment win over its arguments here.
		if rank, size, bad = r.openEnv(rank, size); bad != nil {
			return Plan{URL: u}, bad
		}
	}
	if rank != cohort.NoRank || size != NoWorldSize || r.Open {
		if bad = addNode(&u, rank, size, r.Open); bad != nil {
			return Plan{URL: u}, bad
		}
	}
	if !known(u.Scheme) {
		return Plan{URL: u}, &problem{
			code: cohort.NotSupported, what: "No rendezvous handler for " + u.Scheme + "://",
			advice: "use env://, tcp:// or file://, or register a handler for this scheme",
		}
	}
	plan := planCustom
	switch u.Scheme {
	case "env":
		plan = planEnv
	case "tcp":
		plan = planTCP
	case "file":
		plan = planFile
	}
	return planner(plan)(u, r)
}

func (r Request) getenv(name string) string {
	if r.Env == nil {
		return ""
	}
	value, _ := r.Env(name)
	return value
}

// openEnv reads RANK and WORLD_SIZE of an open world, where both may be missing.
func (r Request) openEnv(rank cohort.Rank, size int) (cohort.Rank, int, *problem) {
	if text := r.getenv(EnvRank); text != "" {
		n, bad := number(EnvRank, text)
		if bad != nil {
			return rank, size, bad
		}
		rank = cohort.Rank(n)
	}
	if text := r.getenv(EnvWorldSize); text != "" {
		n, bad := number(EnvWorldSize, text)
		if bad != nil {
			return rank, size, bad
		}
		size = n
	}
	return rank, size, nil
}

// addNode puts the arguments beside the URL into its query.
func addNode(u *URL, rank cohort.Rank, size int, open bool) *problem {
	_, hasRank := u.Query["rank"]
	_, hasSize := u.Query["world_size"]
	if hasRank || hasSize {
		return invalid("The url: "+u.text+" has node-specific arguments(rank, world_size) already.",
			"give rank and world size either in the url or as arguments, not both")
	}
	if rank != cohort.NoRank {
		u.Query["rank"] = strconv.Itoa(int(rank))
	}
	if size != NoWorldSize || open {
		u.Query["world_size"] = strconv.Itoa(size)
	}
	return nil
}

// node reads rank and world size from the query; missing decides about one that is not there.
func node(u URL, p *Plan, missing func(item string) (string, *problem)) *problem {
	for _, item := range []string{"rank", "world_size"} {
		text, found := u.Query[item]
		if !found {
			var bad *problem
			if text, bad = missing(item); bad != nil {
				return bad
			}
		}
		n, bad := number(item, text)
		if bad != nil {
			return bad
		}
		if item == "rank" {
			p.Rank = cohort.Rank(n)
		} else {
			p.WorldSize = max(n, NoWorldSize)
		}
	}
	return checkNode(u.Scheme, p.Rank, p.WorldSize)
}

// checkNode finds ranks and sizes that no world can have. PyTorch notices most of these much later or never.
func checkNode(scheme string, rank cohort.Rank, size int) *problem {
	switch {
	case size == 0:
		return initFailure(scheme, "TCPStore world size cannot be 0", "world_size is the number of processes, at least 1")
	case rank < 0:
		return initFailure(scheme, "rank "+strconv.Itoa(int(rank))+" is negative", "ranks count from 0")
	case size > 0 && int(rank) >= size:
		return initFailure(scheme, "rank "+strconv.Itoa(int(rank))+" is not in a world of "+strconv.Itoa(size),
			"ranks go from 0 to "+strconv.Itoa(size-1))
	}
	return nil
}

// missingItem is the error of a scheme whose URL must carry both.
func missingItem(scheme, example string) func(string) (string, *problem) {
	return func(item string) (string, *problem) {
		if item == "rank" {
			return "", initFailure(scheme, "rank parameter missing", "add rank=R to the url, such as "+example)
		}
		return "", initFailure(scheme, "world size parameter missing", "add world_size=N to the url, such as "+example)
	}
}

func planFile(u URL, _ Request) (Plan, *problem) {
	const example = "file:///shared/job.store?rank=0&world_size=4"
	p := Plan{URL: u, Path: u.Path}
	if u.Path == "" {
		advice := "write three slashes and an absolute path, such as " + example
		if u.Host != "" {
			advice = strconv.Quote(u.Host) + " was read as a host name; " + advice
		}
		return p, initFailure("file", "path missing", advice)
	}
	if u.Host != "" && u.Host != "localhost" {
		p.Warning = "file://" + u.Host + u.Path + " names the file " + u.Path + ": " + strconv.Quote(u.Host) +
			" was read as a host name and ignored, as PyTorch does; three slashes begin an absolute path, such as " + example
	}
	bad := node(u, &p, missingItem("file", example))
	return p, bad
}

func planTCP(u URL, r Request) (Plan, *problem) {
	const example = "tcp://10.0.0.1:29500?rank=0&world_size=4"
	p := Plan{URL: u, Host: u.Host, Port: u.Port}
	noPort := initFailure("tcp", "port number missing",
		"every rank must know the port before it starts, so it can be 0 in a world of one only; write "+example)
	if u.Port == 0 && !u.zeroPort {
		return p, noPort
	}
	if bad := node(u, &p, missingItem("tcp", example)); bad != nil {
		return p, bad
	}
	if u.Port == 0 && (p.WorldSize != 1 || r.getenv(EnvUseAgentStore) == "True") {
		return p, noPort
	}
	if u.Host == "" {
		return p, initFailure("tcp", "host name missing", "write the address of rank 0, such as "+example)
	}
	bad := finishTCP(&p, r)
	return p, bad
}

func planEnv(u URL, r Request) (Plan, *problem) {
	p := Plan{URL: u}
	demand := func(name string) (string, *problem) {
		if value := r.getenv(name); value != "" {
			return value, nil
		}
		return "", initFailure("env", "environment variable "+name+" expected, but not set", envAdvice[name])
	}
	bad := node(u, &p, func(item string) (string, *problem) {
		if item == "rank" {
			return demand(EnvRank)
		}
		return demand(EnvWorldSize)
	})
	if bad != nil {
		return p, bad
	}
	if p.Host, bad = demand(EnvMasterAddr); bad != nil {
		return p, bad
	}
	text, bad := demand(EnvMasterPort)
	if bad != nil {
		return p, bad
	}
	if p.Port, bad = number(EnvMasterPort, text); bad != nil {
		return p, bad
	}
	if p.Port < 0 || p.Port > 65535 {
		return p, invalid("port must have value from 0 to 65535 but was "+strconv.Itoa(p.Port)+".", "check "+EnvMasterPort)
	}
	if p.Port == 0 && (p.WorldSize != 1 || r.getenv(EnvUseAgentStore) == "True") {
		return p, initFailure("env", "port number missing",
			EnvMasterPort+" is 0, which only a world of one process can use: the others could not find the port")
	}
	bad = finishTCP(&p, r)
	return p, bad
}

var envAdvice = map[string]string{
	EnvRank:       "set it to the number of this process, from 0, or start the job with a launcher: cohort run or torchrun",
	EnvWorldSize:  "set it to the number of processes, or start the job with a launcher: cohort run or torchrun",
	EnvMasterAddr: "set it to the host name or address of rank 0, the same on every rank",
	EnvMasterPort: "set it to a free port on the host of rank 0, the same on every rank",
}

// finishTCP adds what tcp:// and env:// share: who hosts, and the launcher's variables.
func finishTCP(p *Plan, r Request) *problem {
	p.AgentStore = r.getenv(EnvUseAgentStore) == "True" // exactly this, as PyTorch compares it
	// Up to 2.13 PyTorch takes this variable for any address, and then no process hosts the store of a tcp:// elsewhere.
	served := p.AgentStore && (p.URL.Scheme == "env" || r.getenv(EnvMasterAddr) == p.Host &&
		r.getenv(EnvMasterPort) == strconv.Itoa(p.Port))
	p.Master = p.Rank == 0 && !served
	p.Attempt = r.getenv(EnvRestartCount)
	if len(p.Attempt) > 64 {
		return invalid(EnvRestartCount+" has "+strconv.Itoa(len(p.Attempt))+" bytes", "it is a small number")
	}
	return nil
}

// planCustom takes rank and world size where the URL has them and leaves the rest to the handler.
func planCustom(u URL, _ Request) (Plan, *problem) {
	p := Plan{URL: u, Rank: cohort.NoRank, WorldSize: NoWorldSize, Host: u.Host, Port: u.Port, Path: u.Path}
	if text, found := u.Query["rank"]; found {
		n, bad := number("rank", text)
		if bad != nil {
			return p, bad
		}
		p.Rank = cohort.Rank(max(n, int(cohort.NoRank)))
	}
	if text, found := u.Query["world_size"]; found {
		n, bad := number("world_size", text)
		if bad != nil {
			return p, bad
		}
		p.WorldSize = max(n, NoWorldSize)
	}
	if p.Rank != cohort.NoRank && p.WorldSize != NoWorldSize {
		return p, checkNode(u.Scheme, p.Rank, p.WorldSize)
	}
	return p, nil
}
