"""The roofline: the time of a scheduled program, operation by operation."""

from __future__ import annotations

import pytest

from core.config.topologies import find_topology
from core.training.preflight.roofline import add_up

CHIP = find_topology("v5p-8").chip

# Two operations in a loop of three, one in the larger of two branches, one kernel, two collectives.
PROGRAM = """HloModule jit_step, is_scheduled=true

%fused (param: bf16[8,4]) -> bf16[8,4] {
  ROOT %add.1 = bf16[8,4]{1,0} add(%param, %param)
}

%condition (state: (s32[])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(3)
  ROOT %compare = pred[] compare(%state, %constant.1), direction=LT
}

%body (state: (s32[])) -> (s32[]) {
  %fusion.1 = bf16[8,4]{1,0} fusion(%state), calls=%fused, backend_config={"estimated_cycles":"100"}
  ROOT %copy.1 = bf16[8,4]{0,1} copy(%fusion.1), backend_config={"estimated_cycles":"50"}
}

%small (state: f32[]) -> f32[] {
  ROOT %fusion.2 = f32[] fusion(%state), calls=%fused, backend_config={"estimated_cycles":"5"}
}

%large (state: f32[]) -> f32[] {
  ROOT %fusion.3 = f32[] fusion(%state), calls=%fused, backend_config={"estimated_cycles":"20"}
}

ENTRY %main (batch: s32[2,4096]) -> f32[] {
  %while.1 = (s32[]) while(%batch), condition=%condition, body=%body
  %conditional.1 = f32[] conditional(%batch), branch_computations={%small, %large}
  %splash_mha_fwd.1 = (f32[2,512,64]{2,1,0}, bf16[2,4,4096,64]{3,2,1,0}) custom-call(), KERNEL, x={{
"block": 512
}}
  %all-gather.1 = bf16[9000,1000]{1,0} all-gather(%batch), dimensions={0}
  %all-reduce.1 = (f32[1000,1000]{1,0}, bf16[500,2000]{1,0}) all-reduce(%batch), to_apply=%small
  ROOT %fusion.4 = f32[] fusion(%while.1), calls=%fused, backend_config={"estimated_cycles":"30"}
}
""".replace("KERNEL", 'custom_call_target="tpu_custom_call"')


def test_loops_count_as_often_as_they_run_and_branches_by_the_larger_one() -> None:
    roofline = add_up(PROGRAM, CHIP)
    assert roofline is not None
    assert roofline.computing == pytest.approx((3 * 150 + 20 + 30) / 1.75e9)


def test_collectives_move_their_bytes_once_or_twice() -> None:
    roofline = add_up(PROGRAM, CHIP)
    assert roofline is not None
    assert roofline.communicating == pytest.approx((18e6 + 2 * (4e6 + 2e6)) / 180e9)


def test_attention_kernel_with_a_narrow_head_leaves_lanes_idle() -> None:
    wide = add_up(PROGRAM.replace("4096,64]", "4096,128]"), CHIP)
    narrow = add_up(PROGRAM, CHIP)
    backward = add_up(PROGRAM.replace("splash_mha_fwd", "splash_mha_dkv"), CHIP)
    assert wide and narrow and backward
    assert narrow.attention == wide.attention > 0
    assert backward.attention == pytest.approx(2.5 * narrow.attention)
    assert narrow.seconds == pytest.approx(
        narrow.computing + narrow.attention + narrow.communicating
    )


def test_program_without_estimates_has_no_time() -> None:
    assert add_up("", CHIP) is None
    assert add_up(PROGRAM.replace("estimated_cycles", "cycles"), CHIP) is None
