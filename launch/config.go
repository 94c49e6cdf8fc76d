// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"strings"
	"time"
)

// Config describes a job. The zero value of a field means its default. It corresponds to
// torch.distributed.launcher.api.LaunchConfig and to the arguments of torchrun, which the fields name.
type Config struct { //nolint:recvcheck // a method that fills in defaults changes it, the others only read
	// Program is the program with its arguments. Each is a Python string.Template: ${local_rank} is replaced, $$ is $.
	Program []string
	// How says how the program is run: --module, --no-python, --run-path.
	How How
	// Python is the interpreter; default: PYTHON_EXEC, or python3 of the PATH.
	Python string

	// Roles are several programs with their workers, in place of Program, How, Python, Workers and Role.
	Roles []Role

	// Workers is the number of workers on this node: --nproc-per-node.
	Workers int
	// MaxRestarts is how often the job is restarted after a failure: --max-restarts.
	MaxRestarts int
	// Role is the workers' role; default "default": --role.
	Role string
	// RunID names the job; default: random: --rdzv-id.
	RunID string

	// MasterAddr and MasterPort are where the workers find the store; default: the loopback address and a free port: --master-addr and
	// --master-port.
	MasterAddr string
	MasterPort int

	// Nodes are those of a job on several nodes, Members the group of a job whose members change.
	Nodes   Nodes
	Members Members
	// Hang says what is done about a job that hangs.
	Hang Hang
	// Logs says where the output of the workers goes.
	Logs Logs

	// AllowUIDs are users of this host, beside the job's own and root, who may connect to the job's ports: --allow-uid.
	AllowUIDs []uint32

	// Grace is the time between the signal that ends a worker and SIGKILL; default 30 s: --shutdown-timeout.
	Grace time.Duration
	// Linger is how long a failed job waits for the worker that caused the failure of another to end by itself; default
	// 5 s. Negative: not at all.
	Linger time.Duration
	// Interrupt is how long a worker may ignore SIGINT before it is sent SIGTERM; default 2 s.
	Interrupt time.Duration
	// SignalNames is the value of TORCHELASTIC_SIGNALS_TO_HANDLE; default: torchrun's: --signals-to-handle.
	SignalNames string

	// NUMABinding binds each worker to processors near the accelerator that has its local rank: "node", "socket", "exclusive" or
	// "core-complex", as torchrun's --numa-binding; "": to none.
	NUMABinding string
	// Events prints what happens as JSON on the screen's Err, as torchrun's --event-log-handler console. Backend is the name of the
	// rendezvous in it; default "c10d": --rdzv-backend.
	Events  bool
	Backend string

	// VirtualLocalRank gives every worker LOCAL_RANK 0 and one visible device: --virtual-local-rank.
	VirtualLocalRank bool
	// PassLocalRank gives every worker its local rank as the first argument, --local-rank=N, as torch.distributed.launch does without
	// --use-env.
	PassLocalRank bool
	// NoShim keeps our code out of Python workers. Rank 0 then hosts the workers' store.
	NoShim bool
	// EvidenceDir is the folder in which evidence of failures is kept; default: $XDG_STATE_HOME/cohort/evidence, or that folder
	// below ~/.local/state. NoEvidence keeps none.
	EvidenceDir string
	NoEvidence  bool

	// Supervisor is the command line, with the name of this program first, that leads to [SupervisorMain]. Required.
	Supervisor []string
}

// Nodes describes the nodes of a job and where they meet. It corresponds to torch.distributed.elastic.rendezvous.RendezvousParameters.
type Nodes struct {
	// Min and Max are the number of nodes; default 1: --nnodes.
	Min, Max int
	// Endpoint is where several nodes meet, an address and port of one of them, whose launcher hosts the rendezvous and the store, or
	// of a store: --rdzv-endpoint.
	Endpoint string
	// Host says whether this launcher hosts the rendezvous: --rdzv-conf is_host.
	Host Hosting
	// LocalAddr is the address of this node at which the workers of all nodes find the store, if this launcher hosts the rendezvous of
	// several nodes; default: that of the endpoint or, with a store as the endpoint, the one that leads to it: --local-addr.
	LocalAddr string
	// Protection is how the launchers recognise each other.
	Protection Protection
	// Rank is the number that this node asks for; nil: any: --node-rank.
	Rank *int
	// StorePort is the port of the store of a job on several nodes; 0: a free one.
	StorePort int
	// StoreGateway gives each node a gateway to the job's store, if the job may have several nodes: workers find it in MASTER_ADDR and
	// MASTER_PORT, and the store itself in COHORT_STORE: --rdzv-conf store_gateway. With a token or certificates each node has one anyway.
	StoreGateway bool
	// JoinTimeout bounds the wait for Min nodes; default 10 min: --rdzv-conf join_timeout.
	JoinTimeout time.Duration
	// LastCall is how long a job with Min, but not Max, nodes waits for more; default 30 s: --rdzv-conf last_call_timeout.
	LastCall time.Duration
	// Silence is the time without a heartbeat after which a node is declared dead; default 5 s: --rdzv-conf heartbeat_timeout.
	Silence time.Duration
}

// Protection is how the launchers of a job on several nodes recognise each other, over TLS 1.3: by the token of the job, or by
// certificates. The store of such a job accepts only them, and each gives its workers a gateway to it, see StoreGateway. Without either
// they meet in plain text, as torchrun's do, and the launcher that hosts the rendezvous says so. PyTorch has no counterpart.
type Protection struct {
	// Token is the text of a token, which "cohort token new" makes: --token-file. All nodes have the same one.
	Token string
	// CertFile, KeyFile and CAFile are files in PEM: a certificate of this launcher, its key, and the authorities whose certificates are
	// accepted: --tls-cert, --tls-key and --tls-ca. They are read again when they change. A certificate with a SPIFFE ID accepts that
	// ID only; else that of the host must be for the name of the endpoint.
	CertFile, KeyFile, CAFile string
	// Plaintext says that the network is trusted: --insecure-plaintext.
	Plaintext bool
}

// Members describes a group whose members change while their processes keep running. PyTorch has no counterpart: torchrun restarts all
// workers when the members change.
//
// The coordinator of the group (package elastic) runs in the launcher, over the job's store. The workers beyond the members are spares,
// and the job fails when fewer than Min workers are left. If Nodes.Max is above one, the members are on several nodes, and the store and
// the coordinator are at Nodes.Endpoint: in the launcher with that address, or in the process whose store already listens there.
type Members struct {
	// Min and Max are the size of the group; 0: the job has no such group. Min is Max by default.
	Min, Max int
}

// Hang says what is done about a job that hangs. torchrun does nothing; it corresponds to PyTorch's TORCH_NCCL_ASYNC_ERROR_HANDLING and
// the timeout of a process group, seen from outside.
type Hang struct {
	// Timeout is how long ranks that wait for each other may make no progress before the job counts as hung; 0: it is not watched.
	Timeout time.Duration
	// Kill then stops the job, which counts as a failure.
	Kill bool
}

// Logs says where the output of the workers goes. It corresponds to torch.distributed.elastic.multiprocessing.DefaultLogsSpecs.
type Logs struct {
	// Dir is the folder of log files; default: a temporary one that is removed at the end: --log-dir.
	Dir string
	// Redirects are the streams that go to files, Tee those that go to files and to the screen: --redirects and --tee.
	Redirects, Tee StdMap
	// ShowRanks are the local ranks whose output is shown; nil: all: --local-ranks-filter.
	ShowRanks []int
	// Prefix is the template of the prefix of lines that are teed; default "[${role_name}${local_rank}]:": --log-line-prefix-template.
	Prefix string
	// StdoutFilters and StderrFilters select lines of teed streams that go to one more file, of all ranks together:
	// --duplicate-stdout-filters and --duplicate-stderr-filters.
	StdoutFilters, StderrFilters []string
}

// Role is a group of workers of a job that run the same program. It corresponds to the role of
// torch.distributed.elastic.agent.server.WorkerSpec.
type Role struct {
	Name    string
	Workers int
	// Program, How and Python are as in [Config].
	Program []string
	How     How
	Python  string
	// Dir is the folder that the workers run in; "": that of the launcher.
	Dir string
	// Env has variables for the workers of this role ("NAME=value").
	Env []string
}

// String says what is run, and how many times.
func (c Config) String() string {
	if len(c.Roles) > 0 {
		return fmt.Sprintf("launch of %d roles", len(c.Roles))
	}
	return fmt.Sprintf("launch of %d workers: %s", c.Workers, strings.Join(c.Program, " "))
}
