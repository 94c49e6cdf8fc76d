// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch starts, watches and restarts a job, and explains its failures. A job is the workers of one program, each
// with the environment that PyTorch's launcher sets. It corresponds to torch.distributed.run, which users know as
// torchrun.
//
// [Run] runs a job until it ends and returns a [Report]: how each attempt ended, which worker failed first and why. The
// command "cohort run" is this package with torchrun's flags.
//
// A job's store lives in the process that calls Run, so it outlives every worker. Every attempt gets a new store, so no
// attempt sees keys of an earlier one.
//
// The workers are children of a separate process, the supervisor, which kills them all when the caller dies. The supervisor is
// the program that calls Run, started a second time with the arguments of [Config].Supervisor; started that way, it must call
// [SupervisorMain] and exit with the code that it returns.
package launch
