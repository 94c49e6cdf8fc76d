// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package launch starts, watches, restarts and explains a job: the workers of one program on this machine, each with the
// environment that PyTorch's launcher gives it. It corresponds to torch.distributed.run, which users know as torchrun.
//
// [Run] runs a job until it ends and returns a [Report]: how each attempt ended, which worker failed first and why. The
// command "cohort run" is this package with torchrun's flags.
//
// A job's store lives in the process that calls Run, a fresh one for every attempt, so it outlives every worker and
// no attempt sees keys of an earlier one.
//
// Workers are children of a process of their own, the keeper, which ends them all when the caller dies. The program that
// calls Run is started a second time for that, with the arguments of [Config].Keeper; it must call [KeeperMain] then and
// exit with what that returns.
package launch
