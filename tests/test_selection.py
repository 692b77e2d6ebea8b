"""The default command runs the cases that tests name, and says which it leaves out."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import selection
from selection import ONLY_THOROUGH, covering, left_out_lines

# Tests of which no case runs by default, and what does instead. A new one needs a
# reason here.
NOT_BY_DEFAULT = {
    "other cases of test_field, of test_papers and of test_tensorflow_privacy": [
        "benchmarks/test_field.py::test_it_runs_as_a_module",
        "benchmarks/test_papers.py::test_the_quick_command_works",
        "privacy/test_tensorflow_privacy.py::test_the_committed_table_comes_out_again",
    ],
    "other cases of test_audit_whole": [
        "benchmarks/test_audit_whole.py::test_laplace_noise_has_a_threshold_from_repetitions",
        "benchmarks/test_audit_whole.py::test_the_second_bug_is_not_in_the_repetitions",
    ],
    "other cases of test_weights and of test_audit": [
        "algorithms/test_weights.py::test_the_largest_weight_keeps_the_unit_too",
        "benchmarks/test_audit.py::test_records_that_weigh_as_much_as_their_person_are_found",
    ],
    "starts Ray; persons in blocks by data/test_persons, results by strategies/test_contract": [
        "data/test_ray_data.py::test_blocks_without_ids_or_with_wrong_ones_are_refused",
        "data/test_ray_data.py::test_persons_in_blocks_weigh_what_they_weigh_in_one",
        "simulation/test_persons.py::test_ray_gives_the_result_of_one_process",
    ],
    "mypy in .ci/run, and the other tests of test_declarations": [
        "strategies/test_declarations.py::test_type_checkers_refuse_what_no_strategy_takes",
    ],
    "test_replay: one older processor, three algorithms": [
        "algorithms/numerics/test_eigenspace.py::test_eigenvectors_have_the_same_bits_on_every_processor",
        "algorithms/numerics/test_fused.py::test_a_processor_without_wide_instructions_gives_the_same",
        "algorithms/numerics/test_grid_kmeans.py::test_every_processor_finds_the_same_integers",
        "algorithms/numerics/test_transport.py::test_weights_are_the_same_integers_on_every_processor",
        "algorithms/test_replay.py::test_states_are_the_same_integers_on_every_processor",
    ],
    "test_noise_of_sums and the other tests of test_synopsis_sizes": [
        "algorithms/test_synopsis_sizes.py::test_half_of_the_true_number_of_records_loses_no_cells",
        "algorithms/test_synopsis_sizes.py::test_true_sizes_lie_in_all_intervals_at_once",
        "strategies/test_synopsis.py::test_the_warning_is_for_the_clients_that_a_run_expects",
    ],
    "the other tests of suites, of their execution, and of the audit": [
        "benchmarks/bench/test_execution.py::test_a_suite_that_measures_time_runs_alone",
        "benchmarks/bench/test_execution.py::test_a_script_runs_in_two_processes",
        "benchmarks/bench/test_execution.py::test_each_task_may_have_a_process_for_itself",
        "benchmarks/test_suites.py::test_a_client_on_ray_is_measured",
        "benchmarks/test_suites.py::test_bytes_of_vertical_runs_are_the_planned",
        "benchmarks/test_suites.py::test_messages_of_vertical_runs_are_weighed",
        "benchmarks/test_suites.py::test_whole_runs_on_ray_stand_beside_those_of_fedavg",
        "benchmarks/test_audit.py::test_it_goes_on_where_it_was_stopped_and_writes_everything",
        "benchmarks/test_audit.py::test_recorded_runs_and_confidence_are_those_of_the_command",
        "benchmarks/test_losses.py::test_the_command_has_the_tasks_of_every",
        "cli/test_preview.py::test_the_server_of_feddp_has_points_of_the_same_groups",
        "cli/test_preview.py::test_whole_clients_and_bounds_on_sizes_are_simulated_too",
        "simulations/test_feddp_experiments.py::test_its_commands_run_in_two_processes",
        "simulations/test_feddp_experiments.py::test_the_documents_commands_share_an_output",
    ],
    "test_contract::test_ray_gives_the_same_result: Ray on this machine, without a cluster": [
        *(
            f"data/test_ray_data.py::test_{name}"
            for name in (
                "a_whole_record_of_another_length_is_a_null_record",
                "blocks_come_in_order_or_are_added_up_where_they_are",
                "columns_that_are_not_there_are_an_error_before_a_run",
                "what_cannot_be_read_is_an_error",
                "what_one_record_makes_of_its_block_is_no_error",
                "whole_records_may_be_one_column_also_of_objects_that_there_are",
            )
        ),
        *(
            f"simulation/test_ray.py::test_{name}"
            for name in (
                "a_function_is_called_on_both_nodes_which_need_no_file_of_this_process",
                "a_function_that_workers_cannot_read_ends_the_run",
                "a_function_whose_tables_are_refused_sends_nothing",
                "a_ledger_needs_a_cluster_of_one_node",
                "a_run_ends_where_workers_die_again_and_again",
                "a_run_for_which_no_processor_becomes_free_ends_at_its_timeout",
                "a_run_survives_a_node",
                "a_run_survives_a_worker",
                "another_address_than_that_of_the_connection_is_refused",
                "columns_need_a_cluster_of_one_node",
                "data_sets_of_ray_are_not_read_by_tasks_that_hold_the_processors",
                "keys_of_a_roster_reach_both_nodes_and_no_file",
                "references_and_arrays_are_partitions_and_the_connection_stays",
            )
        ),
        "simulation/test_simulate.py::test_clients_on_ray_have_faults",
        "simulation/test_vertical.py::test_ray_gives_the_same_result",
        "simulations/test_existing_app.py::test_both_work_on_ray",
    ],
    "test_page: the same page, without a browser": [
        f"report/html/test_browser.py::test_{name}"
        for name in (
            "an_overflow_would_be_noticed",
            "every_section_is_there_and_nothing_overflows",
            "intervals_are_readable_for_few_clusters_and_many",
            "light_and_dark_follow_the_reader",
            "nothing_is_fetched",
            "paper_cuts_nothing",
            "requests_to_elsewhere_would_be_noticed_too",
            "the_picture_of_the_page_is_not_blank",
            "what_is_fetched_would_be_noticed_and_the_policy_stops_it",
        )
    ],
    "the other tests of test_overlaps: threads, and one connection that a pretended Ray counts": [
        "simulation/test_overlaps.py::test_runs_on_ray_may_end_in_another_order_than_they_began",
    ],
    "the other tests of test_filter": [
        "privacy/test_filter.py::test_what_one_fixed_composition_allows_exceeds_the_limit",
    ],
    "the first test of a PostgreSQL server, and those of SQLite": [
        *(
            f"data/test_sql.py::test_{name}"
            for name in (
                "a_million_rows_of_postgresql_take_bounded_memory",
                "a_pass_that_ends_early_closes_its_connection",
                "a_password_comes_from_the_environment_or_a_file",
                "a_row_that_fails_says_nothing_about_its_record",
                "a_server_that_cannot_be_reached_is_said_clearly",
                "other_types_of_postgresql_are_refused_unless_the_query_turns_them",
                "postgresql_makes_one_select_and_writes_nothing",
                "records_of_postgresql_are_encoded_as_declared",
                "texts_of_other_encodings_are_read",
            )
        ),
        "simulations/test_omop.py::test_postgresql_has_the_same_records",
    ],
    "test_document_blocks, and a deployment of a new app in .ci/run": [
        "cli/test_new.py::test_its_own_test_passes_in_its_directory_and_beside_it",
        "deployment/test_namespaces.py::test_machines_reach_each_other_at_the_ports_of_their_firewalls_only",
    ],
    "the other tests in a browser": [
        "report/html/test_browser.py::test_an_overflow_would_be_noticed",
        "report/html/test_browser.py::test_light_and_dark_follow_the_reader",
        "report/html/test_browser.py::test_paper_cuts_nothing",
        "report/html/test_browser.py::test_requests_to_elsewhere_would_be_noticed_too",
        "test_site.py::test_a_browser_asks_nobody_but_the_sites_own_server",
    ],
    "building the site in .ci/run, which runs the notebooks": [
        "test_notebooks.py::test_a_notebook_runs_in_an_empty_directory_and_a_failing_cell_is_an_error",
    ],
    "the other tests of test_soak": [
        "test_soak.py::test_memory_does_not_grow_with_rounds_times_clients",
        "test_soak.py::test_what_a_client_is_sent_does_not_grow_with_the_cohort_but_for_path_and_bitmap",
        "test_soak.py::test_two_hundred_runs_leave_nothing_behind",
    ],
    "the other tests of parties, of the engine and of vectors": [
        "vertical/test_engine.py::test_a_narrow_column_is_exact_away_from_borders",
        "vertical/test_parties.py::test_two_workers_give_the_words_of_one",
        "vertical/test_vertical_vectors.py::test_joint_keys",
        "vertical/test_vertical_vectors.py::test_vectors_follow_from_the_definitions",
    ],
}


def test_no_behaviour_is_left_out_but_by_name(request):
    named = {f"tests/{name}" for names in NOT_BY_DEFAULT.values() for name in names}
    unnamed = request.config.stash[ONLY_THOROUGH] - named
    assert not unnamed, (
        f"no case runs by default, and NOT_BY_DEFAULT gives no reason: {unnamed}"
    )


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_chosen_cases_hold_every_combination_of_values(strength):
    values = {"a": [1, 2, 3], "b": [{}, {"x": 1}], "c": ["p", "q"]}
    cases = [
        dict(zip(values, case, strict=True))
        for case in itertools.product(*values.values())
    ]
    chosen = [cases[i] for i in covering(cases, strength)]

    def combinations(found):
        return {
            tuple((name, repr(case[name])) for name in names)
            for case in found
            for names in itertools.combinations(sorted(values), strength)
        }

    assert combinations(chosen) == combinations(cases)
    # As few as possible here: 3 values need 3 cases, and 3 x 2 pairs need 6.
    assert len(chosen) == {1: 3, 2: 6, 3: 12}[strength]


def test_equal_parameters_of_two_cases_are_one_value():
    cases = [{"options": {}, "name": "a"}, {"options": {}, "name": "a"}]
    assert covering(cases, 1) == [0]


SUITE = """
import pytest

@pytest.mark.default_cases("values")
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_values(a, b):
    pass

@pytest.mark.default_cases("x", "z")
@pytest.mark.parametrize("name", ["x", "y", "z"])
def test_names(name):
    pass

@pytest.mark.thorough
def test_never():
    pass
"""
CONFIGURATION = """
[pytest]
addopts = -m "not thorough and not slow"
markers =
    default_cases: .
    slow: .
    thorough: .
"""


HOOKS = """
from selection import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
"""


@pytest.fixture
def outcome(tmp_path):
    """Return a function that runs a small suite with this one's hooks, and returns its output."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "pytest.ini").write_text(CONFIGURATION)
    support = str(Path(selection.__file__).parent)

    def run(*options):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-v",
            *options,
        ]
        environment = {**os.environ, "PYTHONPATH": support}
        found = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    return run


@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_session_runs_the_chosen_cases_and_says_what_it_left_out(outcome, processes):
    output = outcome(*processes)
    named = set(re.findall(r"test_suite\.py::(\S+)", output))
    assert named == {
        "test_values[1-1]",
        "test_values[3-2]",
        "test_names[x]",
        "test_names[z]",
    }
    assert "4 passed" in output
    assert (
        "Left out: 4 thorough cases. Run them with: python -m pytest -n 2 -m thorough"
        in output
    )
    assert "Left out: 2 slow cases. Run them with: python -m pytest -m slow" in output
    assert "deployment" not in output


def test_thorough_runs_all_others(outcome):
    output = outcome("-m", "thorough")
    assert "4 passed, 6 deselected" in output
    assert "test_never PASSED" in output
    assert "thorough cases" not in output


def test_a_marker_that_chooses_nothing_is_an_error(tmp_path, outcome):
    text = SUITE.replace('"x", "z"', '"w"')
    (tmp_path / "test_suite.py").write_text(text)
    with pytest.raises(
        AssertionError, match=r"default_cases of .*test_names.* chooses no case"
    ):
        outcome()


def test_no_line_is_for_what_was_not_left_out():
    assert left_out_lines({}) == []
    assert left_out_lines({"slow": 0}) == []
